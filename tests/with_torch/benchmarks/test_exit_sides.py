"""What `brisk bench exits` measures, on a network so small that it takes no time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from brisk.exits.data.samples import Samples
from brisk_bench.exits import streams as exit_streams
from brisk_bench.exits.runs import BARE, ExitBench, Version
from brisk_bench.exits.streams import READINGS, squares_of, video_intervals
from support.exits.cascades import Served, images, network, served

pytestmark = [pytest.mark.timing, pytest.mark.beside]


def test_sides_in_turns_are_judged_by_the_bare_model(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(network(tail="plain"), file)
    model = served(tail="plain")
    samples = Samples({"image": images(24)})
    bench = ExitBench(file)
    try:
        sides = bench.measure(
            {
                "caches": Version(model.cascade, True),
                "always the last class": lambda inputs: np.eye(10)[[9] * len(inputs["image"])],
            },
            samples,
            batch=2,
            quick=False,
        )
    finally:
        bench.close()
    truth = np.concatenate([_classes(model, rows) for rows in np.split(images(24), 12)])
    assert {len(side.times_s) for side in sides.values()} == {24}
    assert sides[BARE].agreement == 1
    assert sides["always the last class"].agreement == (truth == 9).mean()
    caches = sides["caches"]
    assert 0 < caches.early < 1
    assert len(caches.agreed_early) == caches.early * 24
    columns = caches.columns(sides[BARE])
    assert columns["early_agreement"] == np.mean(caches.agreed_early)
    assert sides[BARE].columns(sides[BARE])["early_agreement"] is None


def _classes(model: Served, rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = model.whole.run({"image": rows})["scores"].argmax(1)
    return found


def test_a_video_is_read_in_parts_and_squares_and_measured_an_interval_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setattr(exit_streams, "MOST_MEASURED", 24)
    file = tmp_path / "video.avi"
    frames = np.repeat(np.arange(0, 240, 8, np.uint8), 192 * 256 * 3).reshape(30, 192, 256, 3)
    frames[:, :32, :32] = 255  # the first part of each frame
    form = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "256x192", "-r", "10", "-i", "-"]
    command = [ffmpeg.get_ffmpeg_exe(), "-v", "error", *form, str(file)]
    subprocess.run(command, input=frames.tobytes(), check=True)
    for reading, requests in zip(READINGS, (48, 3, 3), strict=True):
        intervals = list(video_intervals(file, reading, frames=10, gap=2))
        assert len(intervals) == 2
        assert {interval.sampled for interval in intervals} == {reading.sampled}
        first = intervals[0].arriving.inputs["x"]
        assert first.shape == (10 * requests, 3, 32, 32)
        assert first[::requests, :, :5, :5].mean() > 2  # white
        assert first[2].mean() < first[2 + requests * 9].mean()  # it grows brighter
        assert intervals[0].measured.inputs["x"].shape == (24, 3, 32, 32)
        assert intervals[0].measured.inputs["x"][-1].mean() > first[2].mean()


def test_only_what_comes_after_the_gap_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each frame says its number: nothing is learned at or after what is measured."""
    frames = np.zeros((40, 192, 256, 3), np.uint8)
    frames += np.arange(40, dtype=np.uint8)[:, None, None, None]
    monkeypatch.setattr(exit_streams, "frames_of", lambda file: frames)
    monkeypatch.setattr(exit_streams, "as_input", lambda pixels: np.moveaxis(pixels, -1, -3))
    found = [
        (set(np.unique(one.arriving.inputs["x"])), set(np.unique(one.measured.inputs["x"])))
        for one in video_intervals(Path(), READINGS[0], frames=12, gap=3)
    ]
    assert found == [
        (set(range(12)), set(range(15, 24))),
        (set(range(12, 24)), set(range(27, 36))),
        (set(range(24, 36)), {39}),
    ]


def test_squares_are_as_high_as_the_frame_and_cover_its_width() -> None:
    frame = np.zeros((192, 256, 3), np.uint8)
    frame[:, :6], frame[:, -6:], frame[:6] = 60, 120, 240
    squares = squares_of(frame)
    assert squares.shape == (3, 32, 32, 3)
    assert [square[1:, 0].mean() for square in squares] == [60, 0, 0]
    assert [square[1:, -1].mean() for square in squares] == [0, 0, 120]
    assert (squares[:, 0] == 240).all()
