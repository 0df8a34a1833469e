"""A smaller model that the user names: what it has to be, and whose answers are whose."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from brisk.errors import InvalidModelError
from brisk.exits.base_model import load_graph
from brisk.exits.cascade import INT8, SMALLER, Cascade
from brisk.exits.cascade_file import digest_of, read_cascade
from brisk.exits.data.samples import SampleGroups, Samples
from brisk.exits.exploration import ExplorationSettings, explore, explore_whole
from brisk.exits.files.learning_record import Aim, Stage, read_record, write_record
from brisk.exits.files.sample_files import write_samples
from brisk.exits.files.versions import learned_file, make_private_folder
from brisk.exits.guarantee.calibration import Promise, shared
from brisk.exits.learning.smaller import check_smaller
from brisk.exits.model_graph import read_graph
from brisk.exits.scores import find_scores, find_values
from brisk.runtime.early_exit import learning_process
from brisk.runtime.early_exit.learning_process import learn, look_at
from brisk.settings import tolerance
from support.exits.benchmarks import win_benchmarks
from support.exits.cascades import answered, images, network
from support.exits.texts import text_classifier, texts

COSINE = tolerance("cosine 0.98")
NAME = "small.onnx"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A classifier, beside it one that answers nearly the same, as probabilities, from an input
    of another name and of any size; every benchmark is won."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    win_benchmarks(monkeypatch)
    path = tmp_path / "1" / "model.onnx"
    path.parent.mkdir()
    onnx.save(network(), path)
    onnx.save(similar("softmax"), path.with_name(NAME))
    make_private_folder(path)
    return path


def similar(tail: str, noise: float = 0.8) -> onnx.ModelProto:
    """The same network with noise in its last weights, of deviation 3: answers mostly agree."""
    model = network(tail=tail)
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    (last,) = (each for each in model.graph.initializer if each.name == gemm.input[1])
    weights = numpy_helper.to_array(last)
    drawn = np.random.default_rng(5).normal(0, noise, weights.shape).astype(np.float32)
    last.CopyFrom(numpy_helper.from_array(weights + drawn, last.name))
    (image,) = model.graph.input
    for node in model.graph.node:
        node.input[:] = ["picture" if name == image.name else name for name in node.input]
    image.name = "picture"
    for dim in image.type.tensor_type.shape.dim[2:]:
        dim.dim_param = "side"
    return model


def settings(file: Path, *variants: str) -> ExplorationSettings:
    return ExplorationSettings(accuracy=0.9, variants=variants, smaller=file.with_name(NAME))


def rows_of(rows: dict[str, np.ndarray]) -> SampleGroups:
    return SampleGroups.of([Samples(rows)])


def assert_answers(file: Path, cascade: Cascade) -> None:
    """Rows are answered early by a smaller model whose answers mostly agree; others exactly."""
    base = load_graph(read_graph(file))
    rows = images(400, seed=4)
    rows[7, 0, 0, 0] = math.nan
    frame = answered(base, cascade, {"image": rows})
    early = [row for each in frame.answers if each.exit_index is not None for row in each.rows]
    assert len(early) > 200
    assert 7 not in early, "what is no number is the model's"
    answers, exact = frame.results()["scores"], base.run({"image": rows})["scores"]
    assert (answers[early].argmax(1) == exact[early].argmax(1)).mean() >= 0.9
    others = sorted(set(range(400)) - set(early) - {7})
    np.testing.assert_allclose(answers[others], exact[others], rtol=1e-2, atol=1e-2)


def test_a_smaller_model_answers_what_it_is_sure_of_in_the_model_s_form(file: Path) -> None:
    samples = rows_of({"image": images(600, seed=3)})
    answer = explore_whole(file, samples, None, settings(file))
    assert answer.cascade is not None, answer.reason
    assert [exit_.name for exit_ in answer.cascade.exits] == ["smaller-margin@0"]
    assert answer.cascade.exits[0].shape == (), "it reads images of any size"
    assert_answers(file, answer.cascade)


def test_the_faster_of_int8_and_the_smaller_model_is_taken(file: Path) -> None:
    samples = rows_of({"image": images(600, seed=3)})
    answer = explore_whole(file, samples, None, settings(file, INT8))
    assert {way.name for way in answer.ways} == {"int8-margin@0", "smaller-margin@0"}
    assert answer.cascade is not None
    half = shared(Promise(0.9, answer.cascade.confidence), 2)
    assert half.confidence == pytest.approx(0.975)
    assert half.keeps(answer.cascade.levels[0].count), "one of two is chosen: each proves for both"


def test_values_are_the_smaller_model_s_within_the_tolerance(file: Path) -> None:
    onnx.save(network(tail="plain"), file)
    onnx.save(similar("plain", noise=0.05), file.with_name(NAME))
    samples = rows_of({"image": images(600, seed=3)})
    answer = explore_whole(file, samples, COSINE, settings(file))
    assert answer.cascade is not None, answer.reason
    assert [exit_.name for exit_ in answer.cascade.exits] == ["smaller-typical@0"]


def test_it_competes_with_caches(file: Path, tmp_path: Path) -> None:
    found = explore(file, Samples({"image": images(600, seed=3)}), tmp_path, settings(file))
    assert [way.name.partition("@")[0] for way in found.ways] == ["smaller-margin"]
    assert found.cascade is not None, found.reason
    assert {exit_.variant for exit_ in found.cascade.exits} == {SMALLER}
    assert_answers(file, found.cascade)


def test_traffic_teaches_it_and_another_file_is_learned_anew(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning_process, "VARIANTS", ("Pool(4096)",))
    aim = Aim.of(file, 0.9, "", NAME)
    record = look_at(file, aim)
    assert (record.stage, record.aim) == (Stage.COLLECTING, aim)
    for seed in range(12):
        write_samples(file, [{"image": images(100, seed=seed)}])
    outcome = learn(file, record, 1)
    assert (outcome.stage, outcome.aim) == (Stage.SERVED, aim), outcome.reason
    assert "smaller-margin" in {way.name.partition("@")[0] for way in outcome.ways}
    write_record(file, outcome)
    assert read_record(file) == outcome
    cascade = read_cascade(learned_file(file), digest_of(file))
    assert cascade.exits
    onnx.save(similar("plain"), file.with_name(NAME))
    assert Aim.of(file, 0.9, "", NAME) != aim


def of_texts() -> onnx.ModelProto:
    return text_classifier()


def wide() -> onnx.ModelProto:
    model = similar("softmax")
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim[2:], (9, 9), strict=True):
        dim.dim_value = size
    return model


def single() -> onnx.ModelProto:
    model = similar("softmax")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    return model


def with_fewer_classes() -> onnx.ModelProto:
    model = similar("plain")
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    (last,) = (each for each in model.graph.initializer if each.name == gemm.input[1])
    fewer = np.ascontiguousarray(numpy_helper.to_array(last)[:, :3])
    last.CopyFrom(numpy_helper.from_array(fewer, last.name))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 3
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (of_texts, r"it reads .*; expected image float32 \[batch, 3, \d+, \d+\]"),
        (wide, r"it reads picture float32 \[batch, 3, 9, 9\]; expected image"),
        (single, "it takes batches of one row alone"),
        (with_fewer_classes, r"it has 3 classes, expected \d+"),
    ],
)
def test_what_cannot_answer_for_the_model_is_refused_by_name(
    file: Path, make: object, reason: str
) -> None:
    assert callable(make)
    onnx.save(make(), file.with_name(NAME))
    graph = read_graph(file)
    expected = f"smaller model '{file.with_name(NAME)}' cannot answer for this model: {reason}"
    with pytest.raises(InvalidModelError, match=expected):
        check_smaller(file.with_name(NAME), graph, find_scores(graph))
    record = look_at(file, Aim.of(file, 0.9, "", NAME))
    assert record.stage is Stage.UNFIT
    assert record.reason.startswith(f"smaller model '{file.with_name(NAME)}'"[:150])


@pytest.mark.parametrize("damage", [None, b"no model"])
def test_a_missing_or_damaged_file_is_named(file: Path, damage: bytes | None) -> None:
    file.with_name(NAME).unlink()
    if damage is not None:
        file.with_name(NAME).write_bytes(damage)
    graph = read_graph(file)
    with pytest.raises(InvalidModelError, match=f"smaller model '.*{NAME}' cannot answer"):
        check_smaller(file.with_name(NAME), graph, find_scores(graph))


def test_values_of_another_form_are_refused(file: Path) -> None:
    onnx.save(network(tail="plain"), file)
    graph, model = read_graph(file), similar("plain")
    model.graph.output[0].name = "embedding"
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    gemm.output[0] = "embedding"
    onnx.save(model, file.with_name(NAME))
    with pytest.raises(InvalidModelError, match=r"it has outputs .*; expected scores float32"):
        check_smaller(file.with_name(NAME), graph, find_values(graph, COSINE))


def test_a_smaller_model_that_mixes_rows_is_refused(file: Path) -> None:
    onnx.save(similar("mixing"), file.with_name(NAME))
    with pytest.raises(InvalidModelError, match=r"smaller model .* mixes the rows of a batch"):
        explore_whole(file, rows_of({"image": images(600)}), None, settings(file))


def test_several_inputs_are_read_by_their_names(file: Path) -> None:
    onnx.save(text_classifier(), file)
    onnx.save(text_classifier(), file.with_name(NAME))
    answer = explore_whole(file, rows_of(texts(1200)), None, settings(file))
    assert answer.cascade is not None, answer.reason
    assert [exit_.name for exit_ in answer.cascade.exits] == ["smaller-margin@0"]
