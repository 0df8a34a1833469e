"""A fixed camera's video as requests, read in two ways (GATI, 7.2.1).

As in the paper a network trained on CIFAR-10 looks at a street it never saw, and its caches were
made with CIFAR-10. What it says of the frames is no truth; caches are judged by the same answers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.exits.samples import Samples
from brisk_client.benchmarks.exit_data import as_input
from brisk_client.benchmarks.exit_streams import SAMPLED, Interval

ROWS, COLUMNS, SIDE = 6, 8, 32
HEIGHT, WIDTH = ROWS * SIDE, COLUMNS * SIDE
"""Pixels that a frame is scaled to."""

MEASURED = 800
"""Requests of the interval that follows, evenly spread over it, at most."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is classified of a frame: ``requests`` makes uint8 [requests, SIDE, SIDE, 3] of
    [HEIGHT, WIDTH, 3]. ``frames``: of an interval. ``sampled``: the share of the requests that
    caches learn from.
    """

    name: str
    requests: Callable[[np.ndarray], np.ndarray]
    frames: int
    sampled: float


def parts_of(frame: np.ndarray) -> np.ndarray:
    """All of ROWS times COLUMNS parts, row by row."""
    parts = frame.reshape(ROWS, SIDE, COLUMNS, SIDE, 3).swapaxes(1, 2)
    return parts.reshape(-1, SIDE, SIDE, 3)


def squares_of(frame: np.ndarray) -> np.ndarray:
    """The left, the middle and the right square of the frame's height, each pixel a mean."""
    step = HEIGHT // SIDE
    starts = (0, (WIDTH - HEIGHT) // 2, WIDTH - HEIGHT)
    squares = np.stack([frame[:, start : start + HEIGHT] for start in starts])
    fine = squares.reshape(len(starts), SIDE, step, SIDE, step, 3)
    return np.asarray(fine.mean((2, 4)).round(), np.uint8)


READINGS = (
    Reading("video, 48 parts of a frame", parts_of, 159, SAMPLED),
    Reading("video, 3 squares of a frame's height", squares_of, 265, 1.0),
)
"""Squares are what the paper's network sees of a frame. The 80 s of ``vtest.avi`` hold so few that
an interval takes a third of them and caches learn from all; where a fifth is sampled, hours do."""


def video_intervals(file: Path, reading: Reading) -> Iterator[Interval]:
    """What caches learn in an interval is measured in the next one."""
    made = [as_input(reading.requests(frame)) for frame in _frames(file)]
    frames = reading.frames
    for number in range(len(made) // frames - 1):
        here, next_ = (
            np.ascontiguousarray(np.concatenate(made[start : start + frames]))
            for start in (number * frames, (number + 1) * frames)
        )
        rows = np.linspace(0, len(next_) - 1, min(MEASURED, len(next_))).astype(int)
        arriving, measured = Samples({"x": here}), Samples({"x": next_[rows]})
        yield Interval(reading.name, arriving, measured, reading.sampled)


def _frames(file: Path) -> np.ndarray:
    """Uint8 [frames, HEIGHT, WIDTH, 3]."""
    import imageio_ffmpeg

    scale = f"scale={WIDTH}:{HEIGHT}:flags=area"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(file), "-vf", scale]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    pixels = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return np.frombuffer(pixels, np.uint8).reshape(-1, HEIGHT, WIDTH, 3)
