"""A fixed camera's video as requests: every frame in 48 parts, each to be classified (7.2.1).

As in the paper a network trained on CIFAR-10 looks at a street it never saw, and its caches were
made with CIFAR-10. What it says of the parts is no truth; caches are judged by the same answers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from brisk.exits.samples import Samples
from brisk_client.benchmarks.exit_data import as_input
from brisk_client.benchmarks.exit_streams import Interval

ROWS, COLUMNS, SIDE = 6, 8, 32
FRAMES = 130
"""Of an interval: 13 s of ten frames each."""

MEASURED = 480
"""Requests of the interval that follows, evenly spread over it."""


def video_intervals(file: Path) -> Iterator[Interval]:
    """What caches learn in an interval is measured in the next one."""
    parts = list(_read_parts(file))
    for number in range(len(parts) // FRAMES - 1):
        here, next_ = (
            np.concatenate(parts[start : start + FRAMES])
            for start in (number * FRAMES, (number + 1) * FRAMES)
        )
        measured = next_[np.linspace(0, len(next_) - 1, MEASURED).astype(int)]
        yield Interval("video", Samples({"x": here}), Samples({"x": measured}))


def _read_parts(file: Path) -> Iterator[np.ndarray]:
    """Of each frame: float32 [ROWS * COLUMNS, 3, SIDE, SIDE] as the network takes it."""
    import imageio_ffmpeg

    scale = f"scale={COLUMNS * SIDE}:{ROWS * SIDE}:flags=area"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(file), "-vf", scale]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    pixels = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    frames = np.frombuffer(pixels, np.uint8).reshape(-1, ROWS, SIDE, COLUMNS, SIDE, 3)
    for frame in frames:
        yield np.ascontiguousarray(as_input(frame.swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3)))
