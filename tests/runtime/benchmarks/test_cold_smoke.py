"""`brisk bench cold` on a tiny model, end to end, in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from brisk_bench import cold
from brisk_bench.cold.page_cache import disk_seconds, drop_pages, read_pages
from brisk_bench.engines.networks import SMOKE, build

pytestmark = [pytest.mark.timing, pytest.mark.beside]


def test_a_tiny_model_is_measured_against_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    report = cold.run(
        quick=True,
        model=[SMOKE],
        engines=["brisk unprepared", "onnxruntime"],
        parts=["process", "disk"],
        threads=1,
        rounds=1,
        folder=tmp_path,
    )
    found = {(row["part"], row["engine"]): row for row in report.rows}
    assert {"brisk unprepared", "onnxruntime"} == {
        name for part, name in found if part == "process"
    }
    assert found["disk", "onnxruntime"]["read_ms"] > 0
    assert all(row["first_ms"] > 0 for row in found.values())
    agreement = [check for check in report.checks if "agree" in check.name]
    assert [check.ok for check in agreement] == [True]


def test_an_engine_that_fails_has_its_reason_in_its_row(tmp_path: Path) -> None:
    files = build(SMOKE, tmp_path)
    files.model.write_bytes(b"no model")
    report = cold.run(
        quick=True,
        model=[SMOKE],
        engines=["brisk unprepared"],
        parts=["process"],
        threads=1,
        folder=tmp_path,
    )
    (row,) = report.rows
    assert (row["part"], row["engine"]) == ("unmeasured", "brisk unprepared")
    assert "not a complete ONNX model" in row["reason"]


def test_models_are_built_once_and_for_one_row(tmp_path: Path) -> None:
    files = build(SMOKE, tmp_path)
    state = files.model.stat()
    again = build(SMOKE, tmp_path)
    assert again.model.stat().st_mtime_ns == state.st_mtime_ns
    (value,) = onnx.load(files.model).graph.input
    assert value.type.tensor_type.shape.dim[0].dim_value == 1
    with np.load(files.inputs) as arrays:
        assert [arrays[name].shape[0] for name in arrays.files] == [1]


def test_files_that_were_dropped_can_be_read_and_timed(tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(b"x" * 100_000)
    drop_pages([file])
    assert disk_seconds([file]) > 0
    read_pages([file])
    assert file.read_bytes() == b"x" * 100_000


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--model", "alexnet", "there are: resnet50"),
        ("--engines", "tensorrt", "there are: brisk"),
        ("--parts", "network", "there are: process, disk, served"),
    ],
)
def test_a_command_line_of_unknown_names_is_refused(
    option: str, value: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cold.main([option, value])
    assert text in capsys.readouterr().err
