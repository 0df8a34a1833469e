"""`brisk bench cold` on a tiny model, end to end, in seconds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from brisk_client.benchmarks import cold
from brisk_client.benchmarks.cold.burden import Load, burden
from brisk_client.benchmarks.cold.measure import disk_seconds, drop_pages, read_pages
from brisk_client.benchmarks.cold.models import SMOKE, build, model_named
from brisk_client.benchmarks.harness.command_line import UnusableArgumentError

pytestmark = pytest.mark.timing


def test_a_tiny_model_is_measured_against_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    report = cold.run(
        cold.ColdOptions(
            quick=True,
            models=[SMOKE],
            engines=["brisk unprepared", "onnxruntime"],
            parts=["process", "disk"],
            threads=1,
            rounds=2,
            folder=tmp_path,
        )
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
    files = build(SMOKE, 1, tmp_path)
    files.model.write_bytes(b"no model")
    report = cold.run(
        cold.ColdOptions(
            quick=True,
            models=[SMOKE],
            engines=["brisk unprepared"],
            parts=["process"],
            threads=1,
            folder=tmp_path,
        )
    )
    (row,) = report.rows
    assert (row["part"], row["engine"]) == ("unmeasured", "brisk unprepared")
    assert "not an ONNX model" in row["reason"]


def test_models_are_built_once_and_of_the_batch_asked_for(tmp_path: Path) -> None:
    files = build(SMOKE, 4, tmp_path)
    state = files.model.stat()
    again = build(SMOKE, 4, tmp_path)
    assert again.model.stat().st_mtime_ns == state.st_mtime_ns
    (value,) = onnx.load(files.model).graph.input
    assert value.type.tensor_type.shape.dim[0].dim_value == 4
    with np.load(files.inputs) as arrays:
        assert [arrays[name].shape[0] for name in arrays.files] == [4]


def test_an_unknown_model_is_answered_with_those_there_are() -> None:
    with pytest.raises(UnusableArgumentError, match="resnet50"):
        model_named("alexnet")


def test_files_that_were_dropped_can_be_read_and_timed(tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(b"x" * 100_000)
    drop_pages([file])
    assert disk_seconds([file]) > 0
    read_pages([file])
    assert file.read_bytes() == b"x" * 100_000


def test_a_burden_keeps_a_processor_busy() -> None:
    """Behind the first line that a process of it writes, which it waits for."""
    before = os.times()
    with burden(Load(1.0, 1)):
        time.sleep(0.3)
    after = os.times()
    assert after.children_user - before.children_user > 0.1


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--model", "alexnet", "there are: resnet50"),
        ("--engines", "tensorrt", "there are: brisk"),
        ("--parts", "network", "there are: process, disk, load, served"),
    ],
)
def test_a_command_line_of_unknown_names_is_refused(
    option: str, value: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cold.main([option, value])
    assert text in capsys.readouterr().err
