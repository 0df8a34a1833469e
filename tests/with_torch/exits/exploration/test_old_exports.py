"""Classifiers as old exporters write them: weights among the inputs, one row a batch, scores with
dimensions of size 1 behind the classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.errors import InvalidModelError
from brisk.exits.base_model import answers_of, load_graph, taps_of
from brisk.exits.cascade_file import digest_of, read_cascade
from brisk.exits.data.samples import SampleGroups, Samples
from brisk.exits.exploration import ExplorationSettings, explore_whole
from brisk.exits.files.learning_record import Aim, Stage
from brisk.exits.files.sample_files import write_samples
from brisk.exits.files.versions import learned_file, make_private_folder
from brisk.exits.learning.quantising import quantised
from brisk.exits.model_graph import read_graph, readable
from brisk.exits.scores import ScoreForm, find_scores
from brisk.runtime.early_exit import learning_process
from brisk.runtime.early_exit.audit_process import Models
from brisk.runtime.early_exit.learning_process import learn, look_at
from support.exits.adapted import Adapted
from support.exits.benchmarks import win_benchmarks
from support.exits.cascades import answered


def as_old(model: onnx.ModelProto, rows: int = 1) -> onnx.ModelProto:
    """``model`` with its scores alone, [rows, classes, 1, 1], in that form."""
    old = onnx.ModelProto()
    old.CopyFrom(model)
    graph = old.graph
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = rows
    scores = find_scores_of(model)
    del graph.output[:]
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 3]), "axes"))
    graph.node.append(helper.make_node("Unsqueeze", [scores, "axes"], ["old"]))
    graph.output.append(helper.make_tensor_value_info("old", TensorProto.FLOAT, [rows, 10, 1, 1]))
    del graph.value_info[:]
    graph.input.extend(
        helper.make_tensor_value_info(each.name, each.data_type, each.dims)
        for each in graph.initializer
    )
    old.ir_version = 8  # with which inputs that are weights may be given, too
    return old


def find_scores_of(model: onnx.ModelProto) -> str:
    return next(each.name for each in model.graph.output if each.type.tensor_type.elem_type == 1)


@pytest.fixture
def file(tmp_path: Path, adapted: Adapted, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A digits network."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "model.onnx"
    onnx.save(as_old(onnx.load(adapted.model_file)), path)
    make_private_folder(path)
    return path


def test_it_is_read_as_what_it_is(file: Path, adapted: Adapted) -> None:
    graph = read_graph(file)
    assert len(graph.inputs) > 1
    assert [each.name for each in graph.needed] == ["image"]
    assert graph.is_single
    assert readable(graph) == (1, 8, 8)
    scores = find_scores(graph)
    assert (scores.value, scores.classes, scores.rank) == ("old", 10, 4)
    base = load_graph(graph)
    (together,) = answers_of(base, scores, {"image": adapted.images[:5]})
    assert together.shape == (5, 10)
    for row in range(5):
        (alone,) = answers_of(base, scores, {"image": adapted.images[row : row + 1]})
        np.testing.assert_array_equal(alone[0], together[row])


def test_batches_of_several_rows_and_no_others_are_refused(
    tmp_path: Path, adapted: Adapted
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(as_old(onnx.load(adapted.model_file), rows=4), path)
    with pytest.raises(InvalidModelError, match="batches of 4 rows and no others"):
        find_scores(read_graph(path))


def test_its_traffic_teaches_early_answers_of_its_form(
    file: Path, adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning_process, "POINTS", 2)
    monkeypatch.setattr(learning_process, "VARIANTS", ("Pool(4096)", "int8"))
    win_benchmarks(monkeypatch)
    record = look_at(file, Aim(0.9))
    assert record.stage is Stage.COLLECTING
    for start in range(0, 1700, 100):
        write_samples(file, [{"image": adapted.images[start : start + 100]}])
    outcome = learn(file, record, 1)
    assert outcome.stage is Stage.SERVED, outcome.reason
    assert "int8-margin" in {each.name.partition("@")[0] for each in outcome.ways}
    cascade = read_cascade(learned_file(file), digest_of(file))
    base = load_graph(read_graph(file), 1, cascade.taps)
    early = agreeing = 0
    for row in range(1500, 1700):
        inputs = {"image": adapted.images[row : row + 1]}
        frame = answered(base, cascade, inputs)
        answer, own = frame.results()["old"], base.run(inputs)["old"]
        assert answer.shape == own.shape == (1, 10, 1, 1)
        early += frame.has_early_answers
        agreeing += answer.argmax() == own.argmax()
        (given,) = frame.answers
        if given.logits is not None and early == 1:
            asked = file, digest_of(file), cascade.scores, inputs
            assert Models().answer(*asked, (given.logits,)) == [True]
            assert Models().answer(*asked, (-given.logits,)) == [False]
    assert early > 100
    assert agreeing >= 0.9 * 200


def test_int8_alone_answers_one_row_at_a_time(
    file: Path, adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    win_benchmarks(monkeypatch)
    samples = SampleGroups.of([Samples({"image": adapted.images[:1000]})])
    found = explore_whole(file, samples, None, ExplorationSettings(accuracy=0.9))
    assert found.cascade is not None, found.reason
    (exit_,) = found.cascade.exits
    rows = adapted.images[1000:1040]
    together = exit_.evaluate(rows)
    assert together.logits.shape == (40, 10)
    for row in range(0, 40, 13):
        np.testing.assert_array_equal(
            exit_.evaluate(rows[row : row + 1]).logits[0], together.logits[row]
        )


def old_convolutions() -> onnx.ModelProto:
    """Two convolutions with biases, pooled to [1, 10, 1, 1], a softmax over that; operator set 7,
    which cannot say that a tensor is quantised by channel."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.normal(0, 0.3, (16, 3, 3, 3)),
        "b1": random.normal(0, 0.3, 16),
        "w2": random.normal(0, 0.5, (10, 16, 1, 1)),
        "b2": random.normal(0, 0.1, 10),
    }
    nodes = [
        helper.make_node("Conv", ["data", "w1", "b1"], ["c1"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], kernel_shape=[1, 1]),
        helper.make_node("GlobalAveragePool", ["c2"], ["pooled"]),
        helper.make_node("Softmax", ["pooled"], ["shares"], axis=1),
    ]
    sizes = {"data": [1, 3, 12, 12], "shares": [1, 10, 1, 1]}
    given, made = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes[name])]
        for name in ("data", "shares")
    )
    constants = [
        onnx.numpy_helper.from_array(array.astype(np.float32), name)
        for name, array in weights.items()
    ]
    graph = helper.make_graph(nodes, "old", given, made, constants)
    opsets = [helper.make_opsetid("", 7)]
    return helper.make_model(graph, ir_version=4, opset_imports=opsets)


def test_an_old_operator_set_is_raised_for_int8(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(old_convolutions(), path)
    graph = read_graph(path)
    scores = find_scores(graph)
    assert (scores.value, scores.rank, scores.form) == ("shares", 4, ScoreForm.PROBABILITIES)
    rows = np.random.default_rng(1).normal(0, 1, (100, 3, 12, 12)).astype(np.float32)
    int8 = quantised(graph, scores, {"data": rows[:50]})
    answers = int8.opened(int8.exit_model(0.0))(rows).logits
    base = load_graph(graph, 1, taps_of((), scores, graph))
    (own,) = answers_of(base, scores, {"data": rows})
    assert (answers.argmax(1) == own.argmax(1)).mean() > 0.9


def test_convolutions_over_images_of_any_size_are_quantised_by_their_ranges(
    tmp_path: Path,
) -> None:
    """And a batch of the output that has a name of its own may be the input's."""
    model = old_convolutions()
    for side in (0, 2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[side].dim_param = f"side{side}"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "another"
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    graph = read_graph(path)
    assert readable(graph) is None
    assert graph.may_have_rows("shares")
    assert not graph.has_rows("shares")
    scores = find_scores(graph)
    rows = np.random.default_rng(1).normal(0, 1, (50, 3, 12, 12)).astype(np.float32)
    int8 = quantised(graph, scores, {"data": rows})
    assert int8.shape == ()
    assert "QuantizeLinear" in {node.op_type for node in int8.model.graph.node}
    exit_model = int8.opened(int8.exit_model(0.0))
    base = load_graph(graph, 1, taps_of((), scores, graph))
    for height, width in ((12, 12), (20, 9)):
        others = np.random.default_rng(2).normal(0, 1, (40, 3, height, width)).astype(np.float32)
        (own,) = answers_of(base, scores, {"data": others})
        answers = exit_model({"data": others}).logits
        assert (answers.argmax(1) == own.argmax(1)).mean() > 0.85
