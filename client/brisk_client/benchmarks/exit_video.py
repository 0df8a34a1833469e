"""A fixed camera's video as requests: every frame in twelve parts, each to be classified (7.2.1).

As in the paper a network trained on CIFAR-10 looks at a street it never saw, and its caches were
made with CIFAR-10. What it says of the parts is no truth; caches are judged by the same answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from brisk.exits.samples import Samples
from brisk_client.benchmarks.exit_data import as_input
from brisk_client.benchmarks.exit_streams import Interval

ROWS, COLUMNS, SIDE = 3, 4, 32
FRAMES = 130
"""Of an interval: 13 s of ten frames each."""

MEASURED = 150
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

    size = (COLUMNS * SIDE, ROWS * SIDE)
    frames = imageio_ffmpeg.read_frames(
        str(file), pix_fmt="rgb24", output_params=["-vf", f"scale={size[0]}:{size[1]}:flags=area"]
    )
    next(frames)  # what is known of the video
    for frame in frames:
        pixels = np.frombuffer(frame, np.uint8).reshape(ROWS, SIDE, COLUMNS, SIDE, 3)
        yield np.ascontiguousarray(as_input(pixels.swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3)))
