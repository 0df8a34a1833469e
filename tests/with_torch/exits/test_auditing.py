"""Audits: whole models run beside, at best-effort priority; what exits cost is reviewed."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from brisk.exits.base_model import load_graph, run_base, taps_of
from brisk.exits.cascade import Cascade
from brisk.exits.guarantee.calibration import ExitCount
from brisk.exits.model_graph import ModelGraph, read_graph
from brisk.exits.serving.frame import Answer
from brisk.runtime.early_exit import audit_process
from brisk.runtime.early_exit import audits as auditor_module
from brisk.runtime.early_exit.audits import Auditor, Question
from brisk.runtime.sessions.served_caches import REVIEWED_ROWS, ServedCaches
from support.exits.cascades import network, served, start
from support.exits.exits_model import Model, make_model
from support.runtime.runtime_processes import hurry
from support.waiting import wait_until

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("audited") / "model.onnx")


@pytest.fixture
def auditor() -> Iterator[Auditor[str]]:
    auditor: Auditor[str] = Auditor()
    yield auditor
    auditor.end()


def question(model: Model, digest: str | None = None) -> Question:
    cascade = model.cascade
    images = np.concatenate([model.easy, model.hard])
    own = model_answers(model, images)
    answers = np.where(np.arange(len(images))[:, None] % 4, own, -own)  # a quarter is wrong
    form = digest or cascade.model_digest, cascade.scores, {"image": images}
    return Question(model.file, *form, (answers,))


def model_answers(model: Model, images: np.ndarray) -> np.ndarray:
    """Its class scores."""
    graph = read_graph(model.file)
    base = load_graph(graph, 1, taps_of((), model.cascade.scores, graph))
    return run_base(base, [], model.cascade.scores, {"image": images})[1]


def answered(auditor: Auditor[str]) -> tuple[str, list[bool]]:
    deadline_s = time.monotonic() + PATIENCE_S
    while not auditor.verdicts:
        assert time.monotonic() < deadline_s, "no verdict"
        if auditor.process_id is not None:
            hurry([auditor.process_id])
        time.sleep(0.01)
    return auditor.verdicts.popleft()


def test_answers_are_compared_with_the_whole_model_s_by_what_processors_others_leave(
    auditor: Auditor[str], model: Model
) -> None:
    audit = question(model)
    auditor.ask(audit, "first")

    def stands_aside() -> bool:
        process = auditor.process_id
        return process is not None and os.sched_getscheduler(process) == os.SCHED_IDLE

    wait_until(stands_aside, "the process on idle processors")
    context, agrees = answered(auditor)
    assert context == "first"
    assert agrees == [bool(row % 4) for row in range(len(audit.inputs["image"]))]


def test_a_model_that_has_changed_on_disk_is_not_asked(
    auditor: Auditor[str], model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    auditor.ask(question(model, "another"), "changed")
    assert answered(auditor) == ("changed", [])
    assert "the file has changed since it was loaded" in caplog.text
    caplog.clear()
    auditor.ask(question(model, "another"), "again")
    assert answered(auditor) == ("again", [])
    assert caplog.text == "", "it is neither read nor said again"
    auditor.ask(question(model), "right")
    assert len(answered(auditor)[1]) == 16


def test_a_link_to_nowhere_beside_a_model_does_not_keep_it_from_being_asked(
    model: Model, tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    shutil.copy(model.file, file)
    (tmp_path / "link").symlink_to("nowhere")
    asked = question(dataclasses.replace(model, file=file))
    given = asked.scores, asked.inputs, asked.answers
    models = audit_process.Models()
    assert models.answer(file, "another", *given) == "the file has changed since it was loaded"
    assert models.answer(file, "another", *given) == []
    assert len(models.answer(file, asked.digest, *given)) == 16


def test_a_model_that_is_replaced_while_it_is_read_is_not_asked(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Early answers would be compared with those of the new file under the old one's digest."""
    file = tmp_path / "model.onnx"
    shutil.copy(model.file, file)
    asked = question(dataclasses.replace(model, file=file))

    def replacing(path: Path) -> ModelGraph:
        onnx.save(network(layers=5), path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)
        return read_graph(path)

    monkeypatch.setattr(audit_process, "read_graph", replacing)
    models = audit_process.Models()
    given = file, asked.digest, asked.scores, asked.inputs, asked.answers
    said = models.answer(*given)
    assert isinstance(said, str), said
    assert "was replaced while" in said
    assert models.answer(*given) == "the file has changed since it was loaded"
    assert models.answer(*given) == []
    shutil.copy(model.file, file)
    monkeypatch.undo()
    assert len(models.answer(*given)) == 16


def test_an_auditor_that_dies_is_replaced(
    auditor: Auditor[str], model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditor_module, "RESTART_S", 0.0)
    auditor.ask(question(model), "first")
    assert len(answered(auditor)[1]) == 16
    first = auditor.process_id
    assert first is not None
    os.kill(first, signal.SIGKILL)
    auditor.ask(question(model), "second")
    auditor.ask(question(model), "third")
    verdicts = dict(answered(auditor) for _ in range(2))
    assert len(verdicts["third"]) == 16
    assert auditor.process_id != first


def test_few_questions_wait(auditor: Auditor[str], model: Model) -> None:
    auditor.ask(question(model), "first")
    answered(auditor)
    process = auditor.process_id
    assert process is not None
    os.kill(process, signal.SIGSTOP)  # nothing is answered
    while auditor.has_room:
        auditor.ask(question(model), "")
    assert auditor.waiting == auditor_module.MOST_WAITING
    os.kill(process, signal.SIGCONT)
    for _ in range(auditor_module.MOST_WAITING):
        answered(auditor)
    assert auditor.has_room


def costing(exits: Cascade, saved_s: float, evaluation_s: float) -> ServedCaches:
    model = served(exits=(1, 3), take=8)
    changed = tuple(
        dataclasses.replace(exit_, saved_s=saved_s, evaluation_s=evaluation_s)
        for exit_ in exits.exits
    )
    return ServedCaches.of(dataclasses.replace(exits, exits=changed), model.cut)


@dataclasses.dataclass
class FinishedRun:
    """The part of a frame that an audit reads."""

    rows: int
    evaluated: list[int]
    spent_ns: list[int]
    answers: list[Answer]


def finished(rows: int, hits: int, spent_s: float) -> FinishedRun:
    """A run in which the first exit was evaluated for all rows and answered some."""
    answers = [Answer(tuple(range(hits)), {}, 0, np.zeros((hits, 2), np.float32))] if hits else []
    return FinishedRun(rows, [rows], [int(spent_s * rows * 1e9)], answers)


@pytest.mark.parametrize(("hits", "is_off"), [(0, True), (2, True), (12, False), (60, False)])
def test_an_exit_that_costs_more_than_it_saves_is_switched_off(hits: int, is_off: bool) -> None:
    """1 ms saved by a hit, 50 µs spent on an evaluation: five hits in a hundred pay for it."""
    caches = costing(served(exits=(1, 3), take=8).cascade, 0.95e-3, 50e-6)
    for _ in range(REVIEWED_ROWS // 100 - 1):
        caches.note(finished(100, hits, 50e-6))  # type: ignore[arg-type]
        assert caches.review() == [], "too few rows to say anything"
    caches.note(finished(100, hits, 50e-6))  # type: ignore[arg-type]
    assert caches.review() == ([0] if is_off else [])
    assert caches.switched_off(0.97) == ({0} if is_off else set())
    state = "off: cost" if is_off else "on"
    assert [exit_.state for exit_ in caches.exits()] == [state, "on"]
    assert caches.review() == [], "told once"


def test_an_exit_that_is_kept_for_what_it_rejects_stays_on() -> None:
    """What it rejects, no later exit answers: so were their answers counted for the proof."""
    cascade = served(exits=(1, 3), take=8).cascade
    level, *stricter = cascade.levels
    _, *others = level.count.exits
    count = dataclasses.replace(level.count, exits=(ExitCount(0, 0), *others))
    levels = dataclasses.replace(level, count=count), *stricter
    caches = costing(dataclasses.replace(cascade, levels=levels), 0.95e-3, 50e-6)
    for _ in range(REVIEWED_ROWS // 100):
        caches.note(finished(100, 0, 50e-6))  # type: ignore[arg-type]
    assert caches.review() == []
    assert caches.switched_off(0.97) == set()


def test_what_an_evaluation_costs_is_what_it_takes_as_it_serves() -> None:
    """It was measured to take 10 µs, and takes half a millisecond."""
    caches = costing(served(exits=(1, 3), take=8).cascade, 1e-3, 10e-6)
    for _ in range(REVIEWED_ROWS // 100):
        caches.note(finished(100, 20, 500e-6))  # type: ignore[arg-type]
    assert caches.review() == [0]
    assert "answered 100 of 500 rows" in caches.costly[0]


def test_exits_of_which_nothing_was_measured_stay_on() -> None:
    caches = costing(served(exits=(1, 3), take=8).cascade, 0.0, 10e-6)
    for _ in range(REVIEWED_ROWS // 100):
        caches.note(finished(100, 0, 500e-6))  # type: ignore[arg-type]
    assert caches.review() == []


def test_a_frame_reports_what_it_has_evaluated_and_what_that_took() -> None:
    model = served(exits=(1, 3), take=9)
    images = np.random.default_rng(0).normal(0, 1, (4, 3, 12, 12)).astype(np.float32)
    frame = start(model, images, None)
    while not frame.step():
        pass
    assert frame.rows == 4
    assert frame.evaluated[0] == 4
    answered_first = sum(len(a.rows) for a in frame.answers if a.exit_index == 0)
    assert frame.evaluated[1] in (0, 4 - answered_first)
    assert frame.spent_ns[0] > 0
    expected = model.whole.run({"image": images})
    own = [a for a in frame.answers if a.exit_index is None]
    for answer in own:
        np.testing.assert_allclose(
            answer.values["scores"], expected["scores"][list(answer.rows)], rtol=1e-2, atol=1e-3
        )


def test_the_pipe_takes_inputs_that_are_larger_than_it(
    auditor: Auditor[str], model: Model
) -> None:
    images = np.concatenate([question(model).inputs["image"]] * 40)
    assert images.nbytes > 1 << 20
    answers = np.zeros((len(images), model.cascade.scores.classes), np.float32)
    large = dataclasses.replace(question(model), inputs={"image": images}, answers=(answers,))
    auditor.ask(large, "large")
    assert len(answered(auditor)[1]) == len(images)
