"""Files of anybody's: found in folders, told apart, measured, or answered with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brisk_bench import cold, warm
from brisk_bench.engines.agreement import agree, difference, storable
from brisk_bench.engines.model_inputs import labelled, models_in
from brisk_bench.engines.networks import SMOKE
from brisk_bench.engines.process import describe_end
from brisk_bench.engines.registry import BASE, BRISK, PREPARED_PEERS, WARM
from brisk_bench.harness.command_line import UnusableArgumentError
from brisk_bench.harness.sampling import one_line
from brisk_bench.harness.surroundings import environment
from brisk_bench.real_models import with_random_weights
from support.waiting import TIMED

pytestmark = [pytest.mark.timing, pytest.mark.beside]


def write(file: Path, operator: str = "Relu", domain: str = "") -> Path:
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], domain=domain)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [-1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [-1, 3])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("somebody", 1)]
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)
    return file


def test_models_are_found_below_a_folder_and_told_apart(tmp_path: Path) -> None:
    for name in ("a.onnx", "deep/a.onnx", "entry/1/model.onnx", "named/model.onnx", ".h/b.onnx"):
        write(tmp_path / name)
    found = labelled(models_in([tmp_path]))
    assert list(found) == [f"{tmp_path.name}/a", "deep/a", "entry/1", "named"]
    assert found["deep/a"] == tmp_path / "deep" / "a.onnx"


def test_a_folder_without_models_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableArgumentError, match="holds no"):
        models_in([tmp_path])
    with pytest.raises(UnusableArgumentError, match="nowhere is no folder"):
        models_in([tmp_path / "nowhere"])


def test_every_model_has_a_row_or_a_reason_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(warm, "WARM", {name: WARM[name] for name in (BRISK, BASE)})
    write(tmp_path / "one.onnx")
    write(tmp_path / "two.onnx", "Tanh")
    write(tmp_path / "unknown.onnx", "Nonsense", "somebody")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    report = warm.run(quick=True, models=[tmp_path], through_triton=False)
    reasons = {(row["model"], row["engine"]): row.get("reason") for row in report.rows}
    assert reasons["one", "brisk"] is None
    assert reasons["one", "onnxruntime"] is None
    assert "not a complete ONNX model" in str(reasons["broken", "none"])
    assert "Nonsense" in str(reasons["unknown", "onnxruntime"])
    assert "give them by --input" in str(reasons["unknown", "brisk"])
    means = [row for row in report.rows if row["model"] == "mean of 2 models"]
    assert {"brisk", "onnxruntime"} <= {row["engine"] for row in means}
    checks = {check.name: check.ok for check in report.checks}
    assert checks["one: outputs agree with onnxruntime's"]
    assert not checks["unknown: brisk answers"]
    assert not checks["broken: is measured"]


@pytest.mark.parametrize(
    ("takes_ms", "more_us", "judged"),
    [
        (20.0, 1000.0, ("m: brisk / onnxruntime, 2 thread(s)", 1.05, "<= 1.05", True)),
        (20.0, 1020.0, ("m: brisk / onnxruntime, 2 thread(s)", 1.051, "<= 1.05", False)),
        (0.04, 9.0, ("m: brisk - onnxruntime, 2 thread(s), us", 9.0, "<= 10", True)),
        (0.2, 10.04, ("m: brisk - onnxruntime, 2 thread(s), us", 10.04, "<= 10", False)),
    ],
)
def test_models_over_a_millisecond_are_judged_by_the_ratio_and_others_by_microseconds(
    takes_ms: float, more_us: float, judged: tuple[str, float, str, bool]
) -> None:
    ratio = (takes_ms + more_us / 1e3) / takes_ms
    row = {"model": "m", "ratio_to_onnxruntime": ratio, "more_us": more_us}
    (check,) = warm.checks_of({**row, "onnxruntime_ms": takes_ms}, 2)
    assert (check.name, check.value, check.expected, check.ok) == judged


def test_a_cold_start_of_a_given_file_is_measured_with_its_peers(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    write(tmp_path / "models" / "one.onnx")
    (tmp_path / "models" / "broken.onnx").write_bytes(b"no model")
    report = cold.run(
        quick=True,
        models=[tmp_path / "models"],
        engines=["onnxruntime", "onnxruntime unoptimised", *PREPARED_PEERS],
        parts=["process"],
        threads=1,
        rounds=1,
        folder=tmp_path / "kept",
    )
    rows = {row["engine"]: row for row in report.rows if row["part"] == "process"}
    assert set(rows) == {"onnxruntime", "onnxruntime unoptimised", *PREPARED_PEERS}
    assert all(row["agrees"] for row in rows.values())
    with TIMED:
        assert min(rows[name]["over_prepared_peer"] for name in PREPARED_PEERS) <= 1.0
    (broken,) = (row for row in report.rows if row["part"] == "unmeasured")
    assert (broken["model"], broken["engine"]) == ("broken", "none")
    assert [check.ok for check in report.checks if check.name.startswith("broken")] == [False]


def test_served_starts_meet_a_cache_directory_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for before in (str(tmp_path), None):
        if before is None:
            monkeypatch.delenv("BRISK_CACHE_DIR")
        else:
            monkeypatch.setenv("BRISK_CACHE_DIR", before)
        with environment({"BRISK_CACHE_DIR": "another"}):
            assert os.environ["BRISK_CACHE_DIR"] == "another"
        assert os.environ.get("BRISK_CACHE_DIR") == before


def test_a_command_line_of_files_that_are_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for main in (warm.main, cold.main):
        with pytest.raises(SystemExit):
            main(["--model", str(tmp_path / "none.onnx")])
        assert "there is no file" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            main(["--models", str(tmp_path)])
        assert "holds no *.onnx file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cold.main(["--model", SMOKE, "--model", "vit", "--input", "x=1"])
    assert "--input is of one model" in capsys.readouterr().err


def test_how_a_process_ended_is_told_with_what_it_said_last() -> None:
    assert describe_end(-9, "") == "its process was ended by SIGKILL"
    assert describe_end(1, "a\n\nb \n") == "its process ended with status 1: b"
    assert one_line("a\n  b") == "a b"
    assert len(one_line("x" * 9999)) < 500


def test_answers_of_every_kind_are_compared() -> None:
    texts = storable([["a", "b"], None, np.array(["x"], object)])
    assert [array.dtype.kind for array in texts] == ["U", "U", "f", "U"]
    assert agree(texts, texts)
    ones, nan = [np.ones(3, np.float32)], [np.full(3, np.nan, np.float32)]
    assert agree(nan, nan)
    assert difference(nan, nan) == 0.0
    assert not agree(ones, nan)
    assert difference(ones, nan) == float("inf")
    assert not agree(ones, [np.ones(4, np.float32)])
    assert difference(ones, [np.ones(3, np.float32) * 1.5]) == 0.5
    half = [np.full(3, 1.005, np.float16)]
    assert agree(half, [np.ones(3, np.float16)])
    assert not agree([np.full(3, 1.005, np.float32)], ones)


def test_networks_without_weights_get_random_ones_always_the_same() -> None:
    shape = numpy_helper.from_array(np.array([8, 4], np.int64), "w__SHAPE")
    graph = helper.make_graph(
        [
            helper.make_node("ConstantOfShape", ["w__SHAPE"], ["w"]),
            helper.make_node("Gemm", ["x", "w"], ["y"], transB=1),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        [shape],
    )
    text = helper.make_model(graph).SerializeToString()
    first, again = (with_random_weights(onnx.ModelProto.FromString(text)) for _ in range(2))
    assert [node.op_type for node in first.graph.node] == ["Gemm"]
    weights = {each.name: numpy_helper.to_array(each) for each in first.graph.initializer}["w"]
    assert weights.shape == (8, 4)
    assert weights.std() > 0.3
    assert first.SerializeToString() == again.SerializeToString()
