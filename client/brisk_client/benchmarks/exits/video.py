"""A fixed camera's video as requests, read in two ways (GATI, 7.2.1).

As in the paper a network trained on CIFAR-10 looks at a street it never saw, and its caches were
made with CIFAR-10. What it says of the frames is no truth; caches are judged by the same answers.

Caches learn from earlier frames and are measured on later ones. ``GAP_S`` lies between, so that no
frame is measured that follows one which was learned; what stands still for longer is seen again,
as it is in a camera's traffic.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.exits.data.samples import Samples
from brisk.runtime.settings import ADAPTATION_S, SAMPLED_SHARE
from brisk_client.benchmarks.exits.data import as_input
from brisk_client.benchmarks.exits.streams import Interval

ROWS, COLUMNS, SIDE = 6, 8, 32
HEIGHT, WIDTH = ROWS * SIDE, COLUMNS * SIDE
"""Pixels that a frame is scaled to."""

FRAMES_A_SECOND = 10
FRAMES = round(ADAPTATION_S * FRAMES_A_SECOND)
"""Of an interval: what comes between two retrainings of the product."""

GAP_S = 2.0
GAP_FRAMES = round(GAP_S * FRAMES_A_SECOND)

MEASURED = 800
"""Requests of the interval that follows, evenly spread over it, at most."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is classified of a frame: ``requests`` makes uint8 [requests, SIDE, SIDE, 3] of
    [HEIGHT, WIDTH, 3]. ``sampled``: the share of the requests that caches learn from.
    """

    name: str
    requests: Callable[[np.ndarray], np.ndarray]
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
    Reading("video, 48 parts of a frame", parts_of, SAMPLED_SHARE),
    Reading("video, 3 squares of a frame's height", squares_of, SAMPLED_SHARE),
    Reading("video, 3 squares, BRISK_SAMPLED_SHARE=1", squares_of, 1.0),
)
"""Squares are what the paper's network sees of a frame. A minute holds so few that the default
share of them may prove nothing."""


def video_intervals(
    file: Path, reading: Reading, frames: int = FRAMES, gap: int = GAP_FRAMES
) -> Iterator[Interval]:
    """What caches learn in an interval of ``frames`` is measured in the next, behind ``gap``."""
    made = [as_input(reading.requests(frame)) for frame in _frames(file)]
    for start in range(frames, len(made) - gap, frames):
        here, next_ = (
            np.ascontiguousarray(np.concatenate(part))
            for part in (made[start - frames : start], made[start + gap : start + frames])
        )
        rows = np.linspace(0, len(next_) - 1, min(MEASURED, len(next_))).astype(int)
        arriving, measured = Samples({"x": here}), Samples({"x": next_[rows]})
        yield Interval(reading.name, arriving, measured, reading.sampled)


def _frames(file: Path) -> np.ndarray:
    """Uint8 [frames, HEIGHT, WIDTH, 3]."""
    import imageio_ffmpeg

    scale = f"scale={WIDTH}:{HEIGHT}:flags=area"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(file), "-vf", scale]
    command += ["-r", str(FRAMES_A_SECOND), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    pixels = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return np.frombuffer(pixels, np.uint8).reshape(-1, HEIGHT, WIDTH, 3)
