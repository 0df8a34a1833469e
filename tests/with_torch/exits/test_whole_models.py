"""The model in int8 in front of the exact one, and behind an exit: whose answers are whose."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from brisk.errors import InvalidModelError
from brisk.exits.adaptation.features import gather, look_at
from brisk.exits.base_model import load_graph
from brisk.exits.cascade import INT8, Cascade, Exit
from brisk.exits.cascade_file import read_cascade, write_cascade
from brisk.exits.data.samples import Division, Samples
from brisk.exits.exploration.measuring import Between
from brisk.exits.exploration.whole_models import LabelledOutliers, floor_of, try_whole
from brisk.exits.files.container import DamagedFileError
from brisk.exits.guarantee.calibration import ExitCount, Scored
from brisk.exits.heads.exit_head import Predicted, decided, whole_model
from brisk.exits.heads.exit_model import AnswerForm, ExitModel, Judge
from brisk.exits.learning import quantising, smaller
from brisk.exits.learning.approximate import ApproximateModel
from brisk.exits.learning.exporting import network_of
from brisk.exits.learning.quantising import quantised
from brisk.exits.learning.smaller import check_smaller
from brisk.exits.model_graph import ExitPoint, ModelGraph, read_graph, readable
from brisk.exits.scores import find_scores
from brisk.exits.serving.frame import find_places
from support.exits.cascades import (
    CLASSES,
    SIDE,
    Served,
    finish,
    graph_of,
    images,
    network,
    served,
    start,
)

SHAPE = (3, SIDE, SIDE)


def made_of(graph: ModelGraph) -> ApproximateModel:
    return quantised(graph, find_scores(graph), {"image": images(64, seed=9)})


def front(model: Served, quantised_model: ApproximateModel, floor: float = 0.0) -> Exit:
    point = ExitPoint(0, "image")
    form = AnswerForm(CLASSES)
    exit_model = quantised_model.exit_model(floor)
    return Exit(point, INT8, SHAPE, form, exit_model, 1e-4, 1000, judge=Judge.MARGIN)


def with_exits(model: Served, exits: tuple[Exit, ...], thresholds: tuple[float, ...]) -> Served:
    """The model with other exits, which its cut version stops at."""
    level = dataclasses.replace(
        model.level,
        thresholds=thresholds,
        count=dataclasses.replace(model.level.count, exits=(ExitCount(50, 50),) * len(exits)),
    )
    cascade = dataclasses.replace(model.cascade, exits=exits, levels=(level,), synchronous=True)
    places = find_places(model.cut.plan, model.cut.graph, cascade)
    assert places is not None
    return dataclasses.replace(model, cascade=cascade, places=places)


@pytest.mark.parametrize("tail", ["labels", "softmax"])
def test_it_mostly_answers_as_the_model_and_says_how_sure_it_is(tail: str) -> None:
    graph = graph_of(network(tail=tail))
    exit_model = ExitModel(
        made_of(graph).exit_model(0.0), SHAPE, AnswerForm(CLASSES), is_whole=True
    )
    rows = images(200)
    outcome = exit_model(rows)
    exact = load_graph(graph).run({"image": rows})["scores"]
    agrees = outcome.logits.argmax(1) == exact.argmax(1)
    assert agrees.mean() > 0.8
    shares = np.sort(np.exp(outcome.logits) / np.exp(outcome.logits).sum(1, keepdims=True), 1)
    np.testing.assert_allclose(outcome.scores, shares[:, -1] - shares[:, -2], atol=1e-4)
    sure = outcome.scores >= np.median(outcome.scores)
    assert agrees[sure].all(), "what it is not sure of alone differs"
    assert outcome.near.all()


def test_shares_that_int8_rounds_to_0_are_judged_in_training_as_they_are_served() -> None:
    """Else what is served answers rows that no proof has counted."""
    approximate = made_of(graph_of(network(tail="softmax")))
    rows, nothing = Samples({"image": images(60)}), np.empty(0, np.int64)
    served_as = approximate.opened(approximate.exit_model(0.0))(rows.inputs["image"])
    assert (served_as.logits == -np.inf).any()
    division = Division(*np.split(np.arange(60), 4), nothing, nothing)
    (tried,) = try_whole(
        approximate,
        rows,
        division,
        answers=served_as.logits.argmax(1),
        outliers=LabelledOutliers(rows.take(nothing), nothing, nothing),
        points=1,
        threads=1,
        between=Between(lambda: sum(range(1000)), 1e-3),
    )
    for part, numbers in ((tried.tune, division.tune), (tried.held_out, division.calibrate)):
        np.testing.assert_allclose(part.scores, served_as.scores[numbers], atol=1e-6)
        assert part.near.all()
        assert part.right.all()


def test_shares_that_int8_rounds_to_0_keep_no_row_from_adaptation() -> None:
    model = served(tail="softmax")
    exit_ = front(model, made_of(model.cut.graph))
    cascade = with_exits(model, (exit_,), (0.5,)).cascade
    served_as = exit_.evaluate(images(60))
    assert (served_as.logits == -np.inf).any()
    material = gather(model.whole, cascade, {"image": images(60)})
    assert all(material.finite_rows())
    looked = look_at([network_of(exit_)], material)
    np.testing.assert_allclose(looked.scores[0], served_as.scores, atol=1e-5)
    assert looked.near.all()


def test_nothing_below_the_floor_is_answered_nor_what_is_no_number() -> None:
    quantised_model = made_of(graph_of(network()))
    rows = images(100)
    free = quantised_model.opened(quantised_model.exit_model(0.0))(rows).scores
    floor = float(np.median(free))
    strange = rows.copy()
    strange[3, 1, 2, 2], strange[5, 0, 0, 0] = math.nan, math.inf
    outcome = quantised_model.opened(quantised_model.exit_model(floor))(strange)
    assert not outcome.near[[3, 5]].any()
    assert outcome.scores[[3, 5]].tolist() == [0, 0]
    others = np.delete(np.arange(100), [3, 5])
    expected = np.where(free >= floor, free, 0)[others]
    np.testing.assert_allclose(outcome.scores[others], expected, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 7])
def test_in_front_of_the_model_it_answers_what_it_is_sure_of(rows: int) -> None:
    model = served()
    exit_ = front(model, made_of(model.cut.graph))
    inputs = images(rows)
    looked = exit_.evaluate(inputs)
    threshold = float(np.median(looked.scores))
    chosen = with_exits(model, (exit_,), (threshold,))
    frame = start(chosen, inputs, None)
    assert frame.position == 0
    assert frame.step() == (looked.scores >= threshold).all(), (
        "the evaluation is a step of its own"
    )
    assert frame.position == 0
    results = finish(frame)
    sure = looked.scores >= threshold
    exact = model.whole.run({"image": inputs})["scores"]
    expected = np.where(sure[:, None], looked.logits, exact)
    np.testing.assert_allclose(results["scores"], expected, rtol=1e-3, atol=1e-4)
    assert frame.evaluated == [rows]


def test_behind_an_exit_it_reads_the_rows_that_this_has_missed() -> None:
    model = served()
    first = model.cascade.exits[0]
    behind = dataclasses.replace(front(model, made_of(model.cut.graph)), point=first.point)
    inputs = images(16)
    threshold = model.level.thresholds[0]
    chosen = with_exits(model, (first, behind), (threshold, 0.05))
    frame = start(chosen, inputs, None)
    results = finish(frame)
    exit_of = {row: answer.exit_index for answer in frame.answers for row in answer.rows}
    missed = [row for row in range(16) if exit_of[row] != 0]
    assert 0 < len(missed) < 16
    assert frame.evaluated == [16, len(missed)]
    looked = behind.evaluate(inputs[missed])
    for place, row in enumerate(missed):
        sure = looked.scores[place] >= 0.05
        assert exit_of[row] == (1 if sure else None)
        if sure:
            np.testing.assert_allclose(
                results["scores"][row], looked.logits[place], rtol=1e-3, atol=1e-4
            )


def test_a_file_keeps_it_and_what_judges_it(tmp_path: Path) -> None:
    model = served()
    exit_ = dataclasses.replace(front(model, made_of(model.cut.graph), floor=0.25), threads=2)
    cascade = with_exits(model, (exit_,), (0.5,)).cascade
    write_cascade(tmp_path / "a.caches", cascade)
    again = read_cascade(tmp_path / "a.caches", None)
    assert again.taps == ()
    copy = again.exits[0]
    assert (copy.judge, copy.threads, copy.variant) == (Judge.MARGIN, 2, INT8)
    judging = network_of(copy)
    assert judging.is_whole
    assert float(judging.floor) == 0.25
    logits = torch.from_numpy(copy.evaluate(images(20)).logits)
    scores, _ = judging.decide(logits, torch.zeros(20))
    np.testing.assert_allclose(scores.numpy(), copy.evaluate(images(20)).scores, atol=1e-5)


def test_what_no_int8_can_be_made_of_is_said() -> None:
    model = network()
    other = model.graph.input.add()
    other.CopyFrom(model.graph.input[0])
    other.name = "mask"
    other.type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.node.insert(0, onnx.helper.make_node("Add", ["image", "mask"], ["both"]))
    model.graph.node[1].input[0] = "both"
    graph = graph_of(model)
    assert readable(graph) is None
    with pytest.raises(ValueError, match="something else than tensors of numbers with rows"):
        quantised(graph, find_scores(graph), {"image": images(2), "mask": images(2)})


def test_weights_in_other_files_count_for_the_size_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.onnx"
    form = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    onnx.save(network(), file, **form)
    graph = read_graph(file)
    sizes = [each.stat().st_size for each in (file, tmp_path / "weights")]
    assert graph.file_bytes == sum(sizes)
    for module in (quantising, smaller):
        monkeypatch.setattr(module, "LARGEST_BYTES", max(sizes))
    with pytest.raises(ValueError, match="it has more than"):
        quantised(graph, find_scores(graph), {"image": images(64)})
    with pytest.raises(InvalidModelError, match=r"model\.onnx' cannot answer .* it has more than"):
        check_smaller(file, graph, find_scores(graph))


def test_a_whole_model_of_foreign_operators_is_refused() -> None:
    quantised_model = made_of(graph_of(network()))
    model = onnx.load_model_from_string(quantised_model.exit_model(0.0))
    model.graph.node[0].domain = "evil"
    with pytest.raises(DamagedFileError, match="has operator 'evil:"):
        ExitModel(model.SerializeToString(), SHAPE, AnswerForm(CLASSES), is_whole=True)
    with pytest.raises(DamagedFileError, match="operator"):
        ExitModel(quantised_model.exit_model(0.0), SHAPE, AnswerForm(CLASSES))


BRANCHING = """
<ir_version: 8, opset_import: ["" : 17]>
branching (float[rows, 10] hidden) => (float[rows, 10] logits, float[rows] score, bool[rows] near)
<bool yes = {1}, int64[1] inner = {1}>
{
    logits = If (yes) <
        then_branch = one () => (float[rows, 10] more)
        <float[1] added = {1}> { more = Add (hidden, added) },
        else_branch = other () => (float[rows, 10] most) {
            great = Constant <value = float[1] {2}> ()
            most = Add (hidden, great)
        }
    >
    sums = ReduceSum <keepdims = 0> (logits, inner)
    score = Sigmoid (sums)
    near = Equal (sums, sums)
}
"""


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        ("weight", "weights in another file"),
        ("constant", "weights in another file"),
        ("operator", "has operator 'evil:Add'"),
        ("nothing", ""),
    ],
)
def test_what_lies_in_a_branch_of_a_whole_model_is_checked_too(hostile: str, words: str) -> None:
    """ONNX Runtime would read another file of its path, from wherever the process works."""
    model = onnx.parser.parse_model(BRANCHING)
    one, other = (attribute.g for attribute in model.graph.node[0].attribute)
    tensors = {"weight": one.initializer[0], "constant": other.node[0].attribute[0].t}
    if hostile in tensors:
        tensor = tensors[hostile]
        tensor.ClearField("float_data")
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="etc/passwd")
    if hostile == "operator":
        one.node[0].domain = "evil"
    data = model.SerializeToString()
    if hostile == "nothing":
        found = ExitModel(data, (10,), AnswerForm(10), is_whole=True)(np.ones((2, 10), np.float32))
        np.testing.assert_array_equal(found.logits, np.full((2, 10), 2.0))
        return
    with pytest.raises(DamagedFileError, match=words):
        ExitModel(data, (10,), AnswerForm(10), is_whole=True)


def test_an_exit_in_front_of_the_model_that_reads_no_input_is_of_another_model() -> None:
    model = served()
    exit_ = dataclasses.replace(model.cascade.exits[0], point=ExitPoint(0, "image"))
    cascade: Cascade = dataclasses.replace(model.cascade, exits=(exit_,))
    assert find_places(model.cut.plan, model.cut.graph, cascade) is None


def test_a_floor_is_above_wrongly_answered_outliers_and_not_below_all_ordinary_rows() -> None:
    kinds = np.array([0, 0, 1, 1])
    scores = np.array([0.2, 0.1, 0.4, 0.9], np.float32)
    outliers = Scored(scores, np.array([False, False, False, True]), np.ones(4, bool))
    floor = floor_of(outliers, kinds)
    assert np.float32(0.4) < floor < 0.401
    assert floor_of(outliers, kinds, np.array([0, 0.3, 0.8], np.float32)) == floor
    assert floor_of(outliers, kinds, np.array([0, 0.7, 0.8], np.float32)) == np.float32(0.7)
    harmless = Scored(scores, np.ones(4, bool), np.ones(4, bool))
    assert floor_of(harmless, kinds, np.array([0.7], np.float32)) == 0.0


def test_a_floor_is_above_scores_that_cannot_be_greater() -> None:
    """A tenth of the outliers of a kind are answered otherwise as surely as can be."""
    scores = np.where(np.arange(100) < 10, 1.0, 0.0).astype(np.float32)
    outliers = Scored(scores, np.zeros(100, bool), np.ones(100, bool))
    floor = floor_of(outliers, np.zeros(100, np.int64))
    assert not (scores >= np.float32(floor)).any()
    quantised_model = made_of(graph_of(network()))
    outcome = quantised_model.opened(quantised_model.exit_model(floor))(images(20))
    assert not outcome.scores.any()
    assert outcome.near.all(), "the exact model or a later exit answers them"


def test_a_head_s_floor_is_above_scores_that_cannot_be_greater() -> None:
    logits = torch.zeros(100, CLASSES)
    logits[:10, 3] = 200.0
    outliers = Predicted(logits, torch.zeros(100), torch.zeros(100, dtype=torch.int64))
    ordinary = Predicted(10 * torch.eye(CLASSES), torch.zeros(CLASSES), torch.arange(CLASSES))
    network = whole_model(0.0)
    assert decided(network, outliers).scores[:10].tolist() == [1.0] * 10
    network.set_floor(ordinary, outliers)
    assert not decided(network, outliers).scores.any()
