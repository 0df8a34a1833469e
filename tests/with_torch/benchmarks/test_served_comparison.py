"""Comparing engines that were asked in turns, and the entries they are asked through."""

from pathlib import Path

import onnx
import pytest

from brisk_bench.engines.case import case_of
from brisk_bench.harness.report import Report
from brisk_bench.harness.sampling import Burst
from brisk_bench.served import Answered, checks_of, measure, rows_of, write_entries
from support.models.graph_models import model


def bursts(*medians_s: float) -> list[Burst]:
    return [Burst([median_s] * 3, 0.01) for median_s in medians_s]


def ratios(measured: dict[str, list[Burst]]) -> dict[str, float]:
    return {
        row["engine"]: row["ratio_to_onnxruntime"] for row in rows_of("m", Answered(measured, {}))
    }


def test_rounds_are_compared_pair_by_pair() -> None:
    """The second round was twice as slow for both, which is the machine's doing."""
    measured = {"brisk": bursts(1.1, 2.2, 1.1), "onnxruntime": bursts(1.0, 2.0, 1.0)}
    assert ratios(measured) == {"brisk": pytest.approx(1.1), "onnxruntime": 1.0}


def test_the_faster_of_onnx_runtime_s_two_settings_counts_in_each_round() -> None:
    measured = {
        "brisk": bursts(1.1, 1.1, 1.1),
        "onnxruntime": bursts(1.0, 2.0, 1.0),
        "onnxruntime spinning": bursts(3.0, 1.0, 3.0),
    }
    assert ratios(measured)["brisk"] == pytest.approx(1.1)


def checked(**medians_s: float) -> dict[str, tuple[object, object, bool]]:
    measured = {name.replace("_", " "): bursts(median_s) for name, median_s in medians_s.items()}
    found = checks_of("m", Answered(measured, {"brisk": True}))
    return {check.name: (check.value, check.expected, check.ok) for check in found}


def test_brisk_is_held_against_every_peer_behind_triton_and_its_answer_against_the_right_one() -> (
    None
):
    found = checked(brisk=0.024, onnxruntime=0.02, onnxruntime_backend=0.023)
    ours = "m through Triton: brisk"
    assert found[f"{ours} / Python backend with onnxruntime"] == (1.2, "<= 1.05", False)
    assert found[f"{ours} / Triton's onnxruntime backend"] == (1.043, "<= 1.05", True)
    assert found[f"{ours}'s answer agrees with onnxruntime's"][2]
    small = checked(brisk=0.00092, onnxruntime=0.0009, onnxruntime_backend=0.000911)
    assert small[f"{ours} - Python backend with onnxruntime, us"] == (20.0, "<= 10", False)
    assert small[f"{ours} - Triton's onnxruntime backend, us"] == (9.0, "<= 10", True)


@pytest.mark.server
def test_models_of_anybody_s_are_measured_through_a_real_server(tmp_path: Path) -> None:
    text = "g (float[batch,3] x) => (float[batch,3] y) {y = Neg(x)}"
    onnx.save(model(text), tmp_path / "tiny.onnx")
    onnx.save(model("g (float x) => (float y) {y = Neg(x)}"), tmp_path / "scalar.onnx")
    files = {name: tmp_path / f"{name}.onnx" for name in ("tiny", "scalar")}
    report = Report("served", {}, {}, [], [])
    measure(report, True, 2, files, None)
    rows = {(row["model"], row["engine"]): row for row in report.rows}
    assert set(rows) == {
        (model, engine)
        for model in ("tiny served", "scalar served")
        for engine in ("brisk", "onnxruntime", "onnxruntime spinning")
    }
    assert all(row["agrees"] for row in rows.values())
    assert len(report.checks) == 5


def test_every_engine_serves_the_same_model_under_the_same_configuration(tmp_path: Path) -> None:
    source = tmp_path / "unknown_to_torch" / "1"
    source.mkdir(parents=True)
    text = "g (float[batch,3] x) => (float[batch,3] y) {y = Neg(x)}"
    onnx.save(model(text), source / "model.onnx")
    repository = tmp_path / "repository"
    case = case_of(str(source / "model.onnx"))
    entries = write_entries(repository, case, "unknown_to_torch/1", 2)
    assert list(entries) == ["brisk", "onnxruntime", "onnxruntime spinning"]
    ours, theirs, _ = (
        (repository / entry / "config.pbtxt").read_text().splitlines()[1:]
        for entry in entries.values()
    )
    assert ours[0] == 'backend: "brisk"'
    assert theirs[0] == 'backend: "python"'
    assert ours[1:] == theirs[1:]
    assert 'input [ { name: "x" data_type: TYPE_FP32 dims: [-1, 3] } ]' in ours
    code = (repository / entries["onnxruntime"] / "1" / "model.py").read_text()
    compile(code, "model.py", "exec")
    assert "intra_op_num_threads = 2" in code
    assert 'allow_spinning", "0"' in code
    spinning = (repository / entries["onnxruntime spinning"] / "1" / "model.py").read_text()
    assert 'allow_spinning", "1"' in spinning


def test_triton_s_own_backend_is_a_side_where_it_is_there(tmp_path: Path) -> None:
    file = tmp_path / "tiny.onnx"
    onnx.save(model("g (float[batch,3] x) => (float[batch,3] y) {y = Neg(x)}"), file)
    peer = tmp_path / "backends" / "onnxruntime"
    entries = write_entries(tmp_path / "repository", case_of(str(file)), "tiny", 2, peer)
    folder = tmp_path / "repository" / entries["onnxruntime backend"]
    configured = (folder / "config.pbtxt").read_text()
    assert 'backend: "onnxruntime"' in configured
    assert 'key: "intra_op_thread_count" value: { string_value: "2" }' in configured
    assert (folder / "1" / "model.onnx").read_bytes() == file.read_bytes()


def test_a_sample_with_a_torch_form_is_served_by_torch_too(tmp_path: Path) -> None:
    source = tmp_path / "mlp" / "1"
    source.mkdir(parents=True)
    text = "g (float[1] features) => (float[1] scores) {scores = Neg(features)}"
    onnx.save(model(text), source / "model.onnx")
    repository = tmp_path / "repository"
    entries = write_entries(repository, case_of(str(source / "model.onnx")), "mlp/1", 1)
    assert list(entries) == ["brisk", "onnxruntime", "torch eager"]
    code = (repository / entries["torch eager"] / "1" / "model.py").read_text()
    compile(code, "model.py", "exec")
    assert "['features']" in code
