"""Early answers of embeddings and regressions: which count as the model's own, and who answers."""

from __future__ import annotations

import dataclasses
import importlib
import math
from pathlib import Path

import numpy as np
import onnx
import pytest

from brisk.errors import InvalidModelError
from brisk.exits.base_model import load_graph
from brisk.exits.cascade import Cascade
from brisk.exits.data.samples import Samples
from brisk.exits.exploration import ExplorationSettings, explore_values
from brisk.exits.exploration.measuring import Verification
from brisk.exits.files.artefact import digest_of, read_cascade, write_cascade
from brisk.exits.files.container import DamagedFileError
from brisk.exits.files.learning_record import Aim, LearningRecord, Stage
from brisk.exits.files.versions import (
    learned_file,
    make_private_folder,
    reference_file,
)
from brisk.exits.model_graph import read_graph
from brisk.exits.scores import ScoreForm, Scores, agreeing, find_values
from brisk.exits.serving.frame import ExitingFrame, find_places
from brisk.runtime.early_exit.audit_process import Models
from brisk.runtime.early_exit.learning_process import learn, look_at
from brisk.runtime.early_exit.sampling import write_samples
from brisk.settings import Tolerance, tolerance
from support.exits.cascades import CLASSES, graph_of, images, network

COSINE = tolerance("cosine 0.98")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network whose ten outputs are taken for an embedding, and wins every race."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    module = importlib.import_module("brisk.exits.exploration.values")
    monkeypatch.setattr(module, "race", lambda *_: [Verification(2e-3, 1e-3, 0.9, 0.0)])
    monkeypatch.setattr(module, "look_up_seconds", lambda *_: 0.0)
    path = tmp_path / "model.onnx"
    onnx.save(network(tail="plain"), path)
    make_private_folder(path)
    return path


def scores_of(limit: Tolerance | None) -> Scores:
    form = ScoreForm.LOGITS if limit is None else ScoreForm.VALUES
    return Scores("scores", 3, 2, form, True, limit)


@pytest.mark.parametrize(
    ("text", "ours", "theirs", "agrees"),
    [
        ("cosine 0.9", [1.0, 0.0], [2.0, 0.1], True),
        ("cosine 0.9", [1.0, 0.0], [1.0, 1.0], False),
        ("cosine 0.9", [1.0, 0.0], [-1.0, 0.0], False),
        ("cosine 0.9", [0.0, 0.0], [0.0, 0.0], True),
        ("cosine 0.9", [0.0, 0.0], [1.0, 0.0], False),
        ("cosine 0.9", [math.nan, 0.0], [1.0, 0.0], False),
        ("absolute 0.1", [1.0, 5.0], [1.09, 4.91], True),
        ("absolute 0.1", [1.0, 5.0], [1.0, 5.11], False),
        ("absolute 0.1", [math.nan, 5.0], [math.nan, 5.0], False),
        ("absolute 0.1", [math.inf, 5.0], [math.inf, 5.0], False),
        ("", [1.0, 2.0], [0.4, 0.6], True),
        ("", [2.0, 1.0], [0.4, 0.6], False),
    ],
)
def test_a_row_agrees_where_it_is_within_the_tolerance(
    text: str, ours: list[float], theirs: list[float], agrees: bool
) -> None:
    scores = scores_of(tolerance(text) if text else None)
    found = agreeing(np.array([ours], np.float32), np.array([theirs], np.float32), scores)
    assert found.tolist() == [agrees]


def served(file: Path, cascade: Cascade, rows: np.ndarray) -> ExitingFrame:
    """The rows' answers."""
    base = load_graph(read_graph(file))
    places = find_places(base.plan, base.graph, cascade)
    assert places is not None
    level = cascade.levels[0]
    frame = ExitingFrame(base.program, cascade, places, level, None, {"image": rows})
    while not frame.step():
        pass
    return frame


def test_int8_answers_what_it_is_close_at_and_the_model_the_rest(file: Path) -> None:
    settings = ExplorationSettings(accuracy=0.9)
    found = explore_values(file, Samples({"image": images(600, seed=3)}), COSINE, settings)
    assert found.cascade is not None, found.reason
    assert found.cascade.scores.tolerance == COSINE
    (count,) = found.cascade.levels[0].count.exits
    assert count.answered > 0.5 * found.cascade.levels[0].count.inputs
    rows = images(400, seed=4)
    rows[7, 0, 0, 0] = math.nan
    frame = served(file, found.cascade, rows)
    exact = load_graph(read_graph(file)).run({"image": rows})["scores"]
    answers = frame.results()["scores"]
    early = [row for each in frame.answers if each.exit_index is not None for row in each.rows]
    assert 7 not in early, "what is no number is the model's"
    assert len(early) > 200
    assert agreeing(answers[early], exact[early], found.cascade.scores).mean() >= 0.9
    others = sorted(set(range(400)) - set(early) - {7})
    np.testing.assert_allclose(answers[others], exact[others], rtol=1e-2, atol=1e-2)


def test_a_tolerance_that_int8_does_not_keep_to_is_not_promised(file: Path) -> None:
    tight = tolerance("absolute 1e-6")
    samples = Samples({"image": images(600, seed=3)})
    found = explore_values(file, samples, tight, ExplorationSettings(accuracy=0.9))
    assert found.cascade is None
    assert "int8 keeps to absolute 1e-06 in 0.0% of the samples" in found.reason


def test_what_is_slower_than_the_model_is_not_served(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("brisk.exits.exploration.values")
    monkeypatch.setattr(module, "race", lambda *_: [Verification(1e-3, 2e-3, 0.9, 0.0)])
    samples = Samples({"image": images(600, seed=3)})
    found = explore_values(file, samples, COSINE, ExplorationSettings(accuracy=0.9))
    assert found.cascade is None
    assert "it is better served as it is" in found.reason


def test_a_model_that_mixes_rows_is_refused(file: Path) -> None:
    model = network(tail="plain")
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    mean = onnx.helper.make_node("ReduceMean", [gemm.output[0], "axis"], ["mean"], keepdims=1)
    shifted = onnx.helper.make_node("Sub", [gemm.output[0], "mean"], ["shifted"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "axis"))
    model.graph.node.extend([mean, shifted])
    model.graph.output[0].name = "shifted"
    onnx.save(model, file)
    with pytest.raises(InvalidModelError, match="mixes the rows of a batch"):
        explore_values(
            file, Samples({"image": images(600)}), COSINE, ExplorationSettings(accuracy=0.9)
        )


def test_of_several_outputs_none_is_guessed() -> None:
    with pytest.raises(InvalidModelError, match=r"outputs scores float32 .*, label int64"):
        find_values(graph_of(network(tail="labels")), COSINE)
    found = find_values(graph_of(network(tail="softmax")), COSINE)
    assert (found.value, found.classes, found.form) == ("scores", CLASSES, ScoreForm.VALUES)


def test_traffic_teaches_them_and_nothing_is_trained_again(file: Path) -> None:
    aim = Aim(0.9, str(COSINE))
    record = look_at(file, aim)
    assert (record.stage, record.aim) == (Stage.COLLECTING, aim)
    for seed in range(12):
        write_samples(file, [{"image": images(100, seed=seed)}])
    found = learn(file, record, 1)
    assert (found.stage, found.samples, found.aim) == (Stage.SERVED, 1200, aim), found.reason
    cascade = read_cascade(learned_file(file), digest_of(file))
    assert cascade.scores.tolerance == COSINE
    assert [exit_.name for exit_ in cascade.exits] == ["int8-typical@0"]
    assert not reference_file(file).exists()


def test_without_what_int8_reads_it_is_said_before_anything_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    model = network(tail="plain")
    model.graph.input[0].type.tensor_type.shape.dim[2].ClearField("dim_value")
    onnx.save(model, file)
    record = look_at(file, Aim(0.9, "cosine 0.9"))
    assert record == LearningRecord(Stage.UNFIT, 0.9, reason=record.reason, tolerance="cosine 0.9")
    assert "one float32 tensor of fixed rows" in record.reason


def test_the_auditor_judges_by_the_tolerance(file: Path) -> None:
    scores = find_values(read_graph(file), tolerance("absolute 0.5"))
    rows = images(3)
    own = load_graph(read_graph(file)).run({"image": rows})["scores"]
    answers = own + np.array([[0.0], [0.4], [0.6]], np.float32)
    found = Models().answer(file, digest_of(file), scores, {"image": rows}, answers)
    assert found == [True, True, False]


def test_a_file_that_names_no_tolerance_for_values_is_refused(file: Path, tmp_path: Path) -> None:
    samples = Samples({"image": images(600, seed=3)})
    found = explore_values(file, samples, COSINE, ExplorationSettings(accuracy=0.9)).cascade
    assert found is not None
    path = tmp_path / "model.caches"
    write_cascade(path, found)
    assert read_cascade(path, None).scores == found.scores
    for wrong in (
        dataclasses.replace(found.scores, tolerance=None),
        dataclasses.replace(found.scores, form=ScoreForm.LOGITS),
        dataclasses.replace(found.scores, tolerance=Tolerance("cosine", 2.0)),
        dataclasses.replace(found.scores, tolerance=Tolerance("nearly", 0.5)),
    ):
        write_cascade(path, dataclasses.replace(found, scores=wrong))
        with pytest.raises(DamagedFileError):
            read_cascade(path, None)
