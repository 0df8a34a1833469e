"""Comparing engines that were asked in turns, and the entries they are asked through."""

from pathlib import Path

import onnx
import pytest

from brisk_client.benchmarks.harness.sampling import Burst
from brisk_client.benchmarks.served import ratio, write_entries
from support.models.graph_models import model


def bursts(*medians_s: float) -> list[Burst]:
    return [Burst([median_s] * 3, 0.01) for median_s in medians_s]


def test_rounds_are_compared_pair_by_pair() -> None:
    """The second round was twice as slow for both, which is the machine's doing."""
    measured = {"brisk": bursts(1.1, 2.2, 1.1), "onnxruntime": bursts(1.0, 2.0, 1.0)}
    assert ratio(measured, "brisk") == pytest.approx(1.1)
    assert ratio(measured, "onnxruntime") == 1.0


def test_every_engine_serves_the_same_model_under_the_same_configuration(tmp_path: Path) -> None:
    source = tmp_path / "unknown_to_torch" / "1"
    source.mkdir(parents=True)
    text = "g (float[batch,3] x) => (float[batch,3] y) {y = Neg(x)}"
    onnx.save(model(text), source / "model.onnx")
    repository = tmp_path / "repository"
    entries = write_entries(repository, source / "model.onnx", "unknown_to_torch/1", 2)
    assert list(entries) == ["brisk", "onnxruntime"]
    ours, theirs = (
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


def test_a_sample_with_a_torch_form_is_served_by_torch_too(tmp_path: Path) -> None:
    source = tmp_path / "mlp" / "1"
    source.mkdir(parents=True)
    text = "g (float[1] features) => (float[1] scores) {scores = Neg(features)}"
    onnx.save(model(text), source / "model.onnx")
    repository = tmp_path / "repository"
    entries = write_entries(repository, source / "model.onnx", "mlp/1", 1)
    assert list(entries) == ["brisk", "onnxruntime", "torch eager"]
    code = (repository / entries["torch eager"] / "1" / "model.py").read_text()
    compile(code, "model.py", "exec")
    assert "['features']" in code
