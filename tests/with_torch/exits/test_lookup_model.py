"""Exits as ONNX models: the network's own answers, and nothing but plain operators."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from brisk.exits.cascade import Exit
from brisk.exits.files.container import DamagedFileError
from brisk.exits.heads.distance_gate import summary
from brisk.exits.heads.exit_head import ExitHead, GatedHead, empty_head, weights_of
from brisk.exits.heads.exit_model import OF_CLASSES, OPSET, AnswerForm, ExitModel, Judge
from brisk.exits.heads.predictors import CATALOGUE, variant
from brisk.exits.learning import exporting
from brisk.exits.learning.exporting import export_head, network_of
from brisk.exits.model_graph import ExitPoint
from support.exits.exits_model import make_model

CLASSES = 7
TESTS = Path(__file__).resolve().parents[2]
SHAPES = [(4, 12, 12), (3, 7, 5), (5, 1, 1), (9, 16), (30,)]


def trained(
    name: str, shape: tuple[int, ...], rows: torch.Tensor, judge: Judge = Judge.SELECTOR
) -> ExitHead:
    """Random weights; the gate lets half of ``rows`` pass, the floor half of these."""
    torch.manual_seed(1)
    network = empty_head(name, shape, CLASSES, judge)
    with torch.no_grad():
        logits = network.predictor(rows)
        if isinstance(network, GatedHead):
            network.gate.fit(summary(rows), logits.argmax(1))
            network.gate.limit.copy_(network.distance(rows, logits.argmax(1)).median())
        _, scores, near = network(rows)
        network.floor.copy_(scores[near].median())
    return network


@pytest.mark.parametrize("judge", OF_CLASSES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [each.name for each in CATALOGUE])
def test_a_model_says_what_its_network_says(
    name: str, shape: tuple[int, ...], judge: Judge
) -> None:
    if not variant(name).applies(shape):
        pytest.skip("the variant does not read such a shape")
    rows = torch.randn(64, *shape, generator=torch.Generator().manual_seed(2)).relu_()
    network = trained(name, shape, rows, judge)
    data = export_head(network, shape, name)
    outcome = ExitModel(data, shape, AnswerForm(CLASSES))(rows.numpy())
    with torch.no_grad():
        logits, scores, near = (each.numpy() for each in network(rows))
    scale = max(1.0, float(np.abs(logits).max()))
    np.testing.assert_allclose(outcome.logits, logits, atol=1e-5 * scale)
    agrees = (outcome.near == near) & ((outcome.scores > 0) == (scores > 0))
    assert agrees.sum() >= len(rows) - 2, "but for rows at a limit"
    passing = (8, 24) if judge.is_gated else (24, 40)
    assert passing[0] <= (scores > 0).sum() <= passing[1], "some pass gate and floor, some not"
    np.testing.assert_allclose(outcome.scores[agrees], scores[agrees], atol=1e-5)
    exit_ = Exit(ExitPoint(1, "v"), name, shape, AnswerForm(CLASSES), data, 0.0, 0, judge=judge)
    again = network_of(exit_)
    for key, array in weights_of(network).items():
        np.testing.assert_array_equal(weights_of(again)[key], array)


@pytest.mark.parametrize("judge", OF_CLASSES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_without_numbers_is_never_answered(value: float, judge: Judge) -> None:
    rows = torch.randn(6, 4, 6, 6).relu_()
    network = trained("Conv(3,1)", (4, 6, 6), rows, judge)
    if isinstance(network, GatedHead):
        network.gate.limit.fill_(math.inf)
    network.floor.zero_()
    exit_model = ExitModel(export_head(network, (4, 6, 6)), (4, 6, 6), AnswerForm(CLASSES))
    strange = rows.numpy().copy()
    strange[2, 1, 3, 3] = value
    outcome = exit_model(strange)
    assert not outcome.near[2]
    assert outcome.scores[2] == 0
    assert outcome.near[[0, 1, 3, 4, 5]].all()


def test_an_export_that_answers_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "FLOOR", -0.5)
    with pytest.raises(Exception, match="ONNX form differs from its network"):
        export_head(empty_head("Pool(4096)", (4, 6, 6), 10), (4, 6, 6))


def changed(**parts: object) -> bytes:
    data = export_head(empty_head("Pool(4096)", (4, 6, 6), CLASSES), (4, 6, 6))
    model = onnx.load_model_from_string(data)
    if "operator" in parts:
        model.graph.node[0].op_type = str(parts["operator"])
    if "opset" in parts:
        model.opset_import[0].version = int(str(parts["opset"]))
    if "external" in parts:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=str(parts["external"]))
    if "output" in parts:
        model.graph.output[0].CopyFrom(
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 3])
        )
    if "weight" in parts:
        tensor = model.graph.initializer[0]
        tensor.raw_data = tensor.raw_data[:-4]
    other: bytes = model.SerializeToString()
    return other


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "operator sets"),
        (b"no model", "no ONNX model"),
        (changed(operator="Loop"), "operator ':Loop'"),
        (changed(operator="Identity"), "operator ':Identity'"),
        (changed(opset=OPSET + 1), "operator sets"),
        (changed(external="/etc/passwd"), "weights in another file"),
        (changed(output=3), r"'logits' \['rows', 3\]"),
        (changed(weight=1), "cannot load an exit"),
        (changed(operator="Sqrt"), "an exit"),
    ],
)
def test_what_is_no_exit_model_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(DamagedFileError, match=words):
        ExitModel(data, (4, 6, 6), AnswerForm(CLASSES))


def test_an_evaluation_of_many_rows_answers_each_as_alone() -> None:
    rows = torch.randn(40, 4, 6, 6).relu_()
    data = export_head(trained("Pool(4096)", (4, 6, 6), rows), (4, 6, 6))
    exit_model = ExitModel(data, (4, 6, 6), AnswerForm(CLASSES))
    together = exit_model(rows.numpy())
    for row in range(0, 40, 7):
        alone = exit_model(rows.numpy()[row : row + 1])
        np.testing.assert_allclose(alone.scores[0], together.scores[row], atol=1e-6)


SERVING = """
import sys
from pathlib import Path
import numpy as np
from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.sessions.segment_session import load_segment_session
session = load_segment_session(Path(sys.argv[1]), 1, None, None)
while session.is_loading:
    session.table.wait(1)
watch = CacheWatch(None)
caches = watch.open(session)
assert caches is not None
program = caches.version.base.program
assert program is session.starting.program, "the session itself stops at the exits"
watch.serve(session, caches)
frame = session.start({"image": np.load(sys.argv[2])}, ["scores"])
while not frame.step():
    pass
print(frame.has_early_answers, frame.results()["scores"].shape, "torch" in sys.modules)
"""


def test_a_process_that_answers_early_has_no_torch(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model.onnx")
    np.save(tmp_path / "easy.npy", model.easy)
    ended = subprocess.run(
        [sys.executable, "-c", SERVING, model.file, tmp_path / "easy.npy"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stdout.split("\n")[0] == "True (8, 10) False", ended.stderr[-2000:]
