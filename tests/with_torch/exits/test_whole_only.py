"""The model in int8 as the one way: embeddings, regressions, classifiers without a boundary."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest

from brisk.errors import InvalidModelError
from brisk.exits.base_model import load_graph
from brisk.exits.cascade import Cascade
from brisk.exits.cascade_file import (
    ReplacedModelError,
    digest_of,
    read_cascade,
    write_cascade,
)
from brisk.exits.data.samples import SampleGroups, Samples
from brisk.exits.exploration import ExplorationSettings, Progress, explore_whole
from brisk.exits.exploration.measuring import Verification
from brisk.exits.files.container import DamagedFileError
from brisk.exits.files.learning_record import Aim, LearningRecord, Stage
from brisk.exits.files.sample_files import write_samples
from brisk.exits.files.versions import learned_file, make_private_folder, reference_file
from brisk.exits.model_graph import read_graph
from brisk.exits.scores import ScoreForm, agreeing, all_agreeing, find_values
from brisk.exits.serving.frame import ExitingFrame, find_places
from brisk.runtime.early_exit.audit_process import Models
from brisk.runtime.early_exit.learning_process import learn, look_at
from brisk.settings import Tolerance, tolerance
from support.exits.benchmarks import win_benchmarks
from support.exits.cascades import answered, images, network
from support.exits.texts import WIDTH, text_classifier, text_encoder, texts

COSINE = tolerance("cosine 0.98")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network whose ten outputs are taken for an embedding, and wins every benchmark."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    win_benchmarks(monkeypatch)
    path = tmp_path / "model.onnx"
    onnx.save(network(tail="plain"), path)
    make_private_folder(path)
    return path


def rows_of(*parts: dict[str, np.ndarray]) -> SampleGroups:
    return SampleGroups.of([Samples(part) for part in parts])


class Apart(NamedTuple):
    """The answers of rows that are run one by one, as where ranges are found in each run."""

    early: list[int]
    """The rows that were answered early."""
    answers: dict[str, np.ndarray]
    given: list[tuple[np.ndarray, ...]]
    """All outputs of the early answers, of one row each."""


def served_apart(file: Path, cascade: Cascade, rows: dict[str, np.ndarray]) -> Apart:
    base = load_graph(read_graph(file))
    apart = Apart([], {}, [])
    answers = []
    for row in range(len(next(iter(rows.values())))):
        one = {name: np.ascontiguousarray(array[row : row + 1]) for name, array in rows.items()}
        frame = answered(base, cascade, one)
        answers.append(frame.results())
        for answer in frame.answers:
            if answer.logits is not None:
                apart.early.append(row)
                apart.given.append((answer.logits, *answer.others))
    apart.answers.update(
        {name: np.concatenate([each[name] for each in answers]) for name in answers[0]}
    )
    return apart


def early_rows(frame: ExitingFrame) -> list[int]:
    return [row for each in frame.answers if each.exit_index is not None for row in each.rows]


def test_int8_answers_what_it_is_close_at_and_the_model_the_rest(file: Path) -> None:
    settings = ExplorationSettings(accuracy=0.9)
    answer = explore_whole(file, rows_of({"image": images(600, seed=3)}), COSINE, settings)
    assert answer.cascade is not None, answer.reason
    assert answer.cascade.scores.tolerance == COSINE
    (count,) = answer.cascade.levels[0].count.exits
    assert count.answered > 0.5 * answer.cascade.levels[0].count.inputs
    rows = images(400, seed=4)
    rows[7, 0, 0, 0] = math.nan
    base = load_graph(read_graph(file))
    frame = answered(base, answer.cascade, {"image": rows})
    exact = base.run({"image": rows})["scores"]
    answers = frame.results()["scores"]
    early = early_rows(frame)
    assert 7 not in early, "what is no number is the model's"
    assert len(early) > 200
    assert agreeing(answers[early], exact[early], answer.cascade.scores).mean() >= 0.9
    others = sorted(set(range(400)) - set(early) - {7})
    np.testing.assert_allclose(answers[others], exact[others], rtol=1e-2, atol=1e-2)


def test_a_tolerance_that_int8_does_not_keep_to_is_not_promised(file: Path) -> None:
    tight = tolerance("absolute 1e-6")
    samples = rows_of({"image": images(600, seed=3)})
    answer = explore_whole(file, samples, tight, ExplorationSettings(accuracy=0.9))
    assert answer.cascade is None
    assert "int8 keeps to absolute 1e-06 in 0.0% of the samples" in answer.reason


def test_what_is_slower_than_the_model_is_not_served(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("brisk.exits.exploration.whole_only")
    monkeypatch.setattr(module, "benchmark", lambda *_: [Verification(1e-3, 2e-3, 0.9, 0.0)])
    samples = rows_of({"image": images(600, seed=3)})
    answer = explore_whole(file, samples, COSINE, ExplorationSettings(accuracy=0.9))
    assert answer.cascade is None
    assert "it is better served as it is" in answer.reason


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_rows_that_are_no_finite_numbers_are_left_out_and_the_rest_teaches(
    file: Path, value: float
) -> None:
    rows = images(1010, seed=3)
    rows[5, 0, 0, 0] = rows[990, 0, 2, 2] = value
    write_samples(file, [{"image": rows}])
    write_samples(file, [{"image": np.full_like(rows[:3], value)}])
    record = look_at(file, Aim(0.9, str(COSINE)))
    outcome = learn(file, record, 1)
    assert (outcome.stage, outcome.samples) == (Stage.SERVED, 1008), outcome.reason


@pytest.mark.parametrize("stage", ["running both models", "benchmarking"])
def test_a_model_replaced_meanwhile_gets_nothing_that_was_found_for_its_predecessor(
    file: Path, stage: str
) -> None:
    class Replacing(Progress):
        def stage(self, name: str, total: int) -> None:
            if name == stage:
                onnx.save(network(tail="softmax"), file.with_suffix(".new"))
                file.with_suffix(".new").rename(file)

    samples = rows_of({"image": images(600, seed=3)})
    with pytest.raises(ReplacedModelError, match=r"model '.*' was replaced while caches were"):
        explore_whole(file, samples, COSINE, ExplorationSettings(accuracy=0.9), Replacing())


def test_a_model_that_mixes_rows_is_refused(file: Path) -> None:
    onnx.save(network(tail="mixing"), file)
    with pytest.raises(InvalidModelError, match="mixes the rows of a batch"):
        explore_whole(
            file, rows_of({"image": images(600)}), COSINE, ExplorationSettings(accuracy=0.9)
        )


def test_a_text_encoder_gives_all_its_outputs_early(file: Path) -> None:
    """A vector for each word, one for the text, and a count, for texts of several lengths."""
    onnx.save(text_encoder(), file)
    limit = tolerance("cosine 0.995")
    record = look_at(file, Aim(0.9, str(limit)))
    for seed in range(60):
        lengths = [4 + (seed + step) % 11 for step in range(4)]
        write_samples(file, [texts(5, seed=4 * seed + n, length=n) for n in lengths])
    outcome = learn(file, record, 1)
    assert (outcome.stage, outcome.samples) == (Stage.SERVED, 1200), outcome.reason
    cascade = read_cascade(learned_file(file), digest_of(file))
    assert cascade.scores == find_values(read_graph(file), limit)
    rows = texts(200, seed=999, length=9)
    rows["mask"][5, 0] = math.nan
    early, answers, parts = served_apart(file, cascade, rows)
    assert 5 not in early
    assert len(early) > 100
    own = load_graph(read_graph(file)).run(rows)
    assert {name: array.shape for name, array in answers.items()} == {
        "words_out": (200, 9, 2 * WIDTH),
        "pooled": (200, 2 * WIDTH),
        "count": (200,),
    }
    agrees = all_agreeing(
        [array[early] for array in answers.values()],
        [own[name][early] for name in answers],
        cascade.scores,
    )
    assert agrees.mean() >= 0.9
    picked = {name: array[early] for name, array in rows.items()}
    given = tuple(map(np.concatenate, zip(*parts, strict=True)))
    verdicts = Models().answer(file, digest_of(file), cascade.scores, picked, given)
    assert isinstance(verdicts, list)
    assert np.mean(verdicts) >= 0.9
    wrong = given[0], given[1], given[2] + 1
    verdicts = Models().answer(file, digest_of(file), cascade.scores, picked, wrong)
    assert verdicts == [False] * len(early)


def test_traffic_teaches_them_and_nothing_is_trained_again(file: Path) -> None:
    aim = Aim(0.9, str(COSINE))
    record = look_at(file, aim)
    assert (record.stage, record.aim) == (Stage.COLLECTING, aim)
    for seed in range(12):
        write_samples(file, [{"image": images(100, seed=seed)}])
    outcome = learn(file, record, 1)
    assert (outcome.stage, outcome.samples, outcome.aim) == (Stage.SERVED, 1200, aim), (
        outcome.reason
    )
    cascade = read_cascade(learned_file(file), digest_of(file))
    assert cascade.scores.tolerance == COSINE
    assert [way.name for way in outcome.ways] == ["int8-typical@0"]
    assert [exit_.name for exit_ in cascade.exits] == ["int8-typical@0"]
    assert not reference_file(file).exists()


def test_what_hardly_gains_is_not_served(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("brisk.exits.exploration.whole_only")
    hardly = Verification(1.04e-3, 1e-3, 0.9, 0.0)
    monkeypatch.setattr(module, "benchmark", lambda *_: [hardly])
    record = look_at(file, Aim(0.9, str(COSINE)))
    for seed in range(12):
        write_samples(file, [{"image": images(100, seed=seed)}])
    outcome = learn(file, record, 1)
    assert outcome.stage is Stage.REFUSED
    assert outcome.reason == "int8-typical@0 gains 1.04 ×; from 1.05 × on it is served"
    assert not learned_file(file).exists()


def test_without_what_int8_reads_it_is_said_before_anything_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    model = text_classifier()
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    cast = onnx.helper.make_node("Cast", ["mask"], ["mask32"], to=onnx.TensorProto.FLOAT)
    for node in model.graph.node:
        node.input[:] = ["mask32" if name == "mask" else name for name in node.input]
    model.graph.node.insert(0, cast)
    onnx.save(model, file)
    for aim in (Aim(0.9, "cosine 0.9"), Aim(0.9)):
        record = look_at(file, aim)
        assert record == LearningRecord(Stage.UNFIT, aim, reason=record.reason)
        assert "int8, the other way, reads tensors of numbers" in record.reason


def test_a_classifier_of_texts_of_any_length_is_answered_by_int8_where_it_is_sure(
    file: Path,
) -> None:
    """Learned from a file of each second's texts, of eleven lengths; the promise holds at lengths
    that were in no sample, too."""
    onnx.save(text_classifier(), file)
    record = look_at(file, Aim(0.9))
    assert record.stage is Stage.COLLECTING
    for seed in range(60):
        lengths = [4 + (seed + step) % 11 for step in range(4)]
        write_samples(file, [texts(5, seed=4 * seed + n, length=n) for n in lengths])
    outcome = learn(file, record, 1)
    assert (outcome.stage, outcome.samples) == (Stage.SERVED, 1200), outcome.reason
    cascade = read_cascade(learned_file(file), digest_of(file))
    assert [exit_.name for exit_ in cascade.exits] == ["int8-margin@0"]
    assert cascade.exits[0].shape == ()
    whole = load_graph(read_graph(file))
    for length in (3, 9, 20):
        rows = texts(300, seed=999, length=length)
        rows["mask"][5, 0] = math.nan
        early, outputs, _ = served_apart(file, cascade, rows)
        assert 5 not in early, "what is no number is the model's"
        assert len(early) > 100
        own, answers = whole.run(rows)["logits"], outputs["logits"]
        assert (own[early].argmax(1) == answers[early].argmax(1)).mean() >= 0.9
        others = sorted(set(range(300)) - set(early) - {5})
        np.testing.assert_allclose(answers[others], own[others], rtol=1e-3, atol=1e-3)


def test_rows_of_several_shapes_keep_their_numbers() -> None:
    parts = [{"x": np.full((2, 3), 0.0)}, {"x": np.full((1, 4), 2.0)}, {"x": np.full((2, 3), 3.0)}]
    parts[0]["x"][1] = 1.0
    parts[2]["x"][1] = 4.0
    samples = rows_of(*parts)
    assert [len(group) for group in samples.groups] == [4, 1]
    assert [places.tolist() for places in samples.places] == [[0, 1, 3, 4], [2]]
    assert len(samples) == 5
    taken = samples.take(np.array([4, 2, 0]))
    assert [places.tolist() for places in taken.places] == [[0, 2], [1]]
    assert taken.groups[0].inputs["x"][:, 0].tolist() == [4.0, 0.0]
    assert samples.take(np.array([2])).largest.inputs["x"].shape == (1, 4)
    assert samples.typical_row.inputs["x"].shape == (1, 3)


def test_an_exit_of_one_tensor_is_none_of_a_model_of_several(file: Path) -> None:
    onnx.save(text_classifier(), file)
    samples = rows_of(texts(1200))
    cascade = explore_whole(file, samples, None, ExplorationSettings(accuracy=0.9)).cascade
    assert cascade is not None
    graph, base = read_graph(file), load_graph(read_graph(file))
    assert find_places(base.plan, graph, cascade) is not None
    (exit_,) = cascade.exits
    other = copy.copy(exit_)
    object.__setattr__(other, "shape", (3,))
    changed = dataclasses.replace(cascade, exits=(other,))
    assert find_places(base.plan, graph, changed) is None


def test_the_auditor_judges_by_the_tolerance(file: Path) -> None:
    scores = find_values(read_graph(file), tolerance("absolute 0.5"))
    rows = images(3)
    own = load_graph(read_graph(file)).run({"image": rows})["scores"]
    answers = own + np.array([[0.0], [0.4], [0.6]], np.float32)
    verdicts = Models().answer(file, digest_of(file), scores, {"image": rows}, (answers,))
    assert verdicts == [True, True, False]


def test_a_file_that_names_no_tolerance_for_values_is_refused(file: Path, tmp_path: Path) -> None:
    samples = rows_of({"image": images(600, seed=3)})
    cascade = explore_whole(file, samples, COSINE, ExplorationSettings(accuracy=0.9)).cascade
    assert cascade is not None
    path = tmp_path / "model.caches"
    write_cascade(path, cascade)
    assert read_cascade(path, None).scores == cascade.scores
    for wrong in (
        dataclasses.replace(cascade.scores, tolerance=None),
        dataclasses.replace(cascade.scores, form=ScoreForm.LOGITS),
        dataclasses.replace(cascade.scores, tolerance=Tolerance("cosine", 2.0)),
        dataclasses.replace(cascade.scores, tolerance=Tolerance("nearly", 0.5)),
    ):
        write_cascade(path, dataclasses.replace(cascade, scores=wrong))
        with pytest.raises(DamagedFileError):
            read_cascade(path, None)
