"""Frames that answer early, against the bare model and the caches asked by hand."""

from __future__ import annotations

import threading
import time

import numpy as np
import onnx
import pytest

from brisk.exits.heads.exit_model import ExitEvaluation, Given
from brisk.exits.scores import ScoreForm, as_form
from brisk.exits.serving.exit_thread import ExitOutcome, ExitThread, Ticket, evaluate_exit
from brisk.exits.serving.frame import find_places
from support.exits.cascades import (
    SIDE,
    Served,
    finish,
    graph_of,
    hidden_at,
    images,
    network,
    served,
    start,
)


class StagedExitThread(ExitThread):
    """Evaluates an exit only when the test asks it to."""

    def __init__(self) -> None:
        self.taken: list[Ticket] = []

    def offer(self, ticket: Ticket) -> bool:
        self.taken.append(ticket)
        return True

    def perform(self) -> None:
        ticket = self.taken.pop(0)
        outcome = evaluate_exit(ticket.evaluate, ticket.hidden, ticket.threshold)
        ticket.outcome = outcome or ExitOutcome((), None)


def by_hand(model: Served, inputs: np.ndarray) -> tuple[np.ndarray, list[int | None]]:
    """Each row's scores and the exit that answers it, evaluated one row at a time."""
    rows, exits = [], []
    for place in range(len(inputs)):
        row = inputs[place : place + 1]
        answer, exit_index = model.whole.run({"image": row})["scores"], None
        for index, exit_ in enumerate(model.cascade.exits):
            found = exit_.evaluate(hidden_at(model.cut, exit_.point.value, row))
            if float(found.scores[0]) >= model.level.thresholds[index]:
                answer, exit_index = found.logits, index
                break
        rows.append(answer)
        exits.append(exit_index)
    return np.concatenate(rows), exits


def close(answers: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(answers, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("tail", ["labels", "plain", "softmax", "written"])
@pytest.mark.parametrize("rows", [1, 2, 8, 21])
def test_every_row_gets_its_first_hit_or_the_models_own_answer(rows: int, tail: str) -> None:
    model, inputs = served(tail=tail), images(rows)
    frame = start(model, inputs, None)
    results = finish(frame)
    expected, exits = by_hand(model, inputs)
    if tail in ("softmax", "written"):
        early = np.array([exit_index is not None for exit_index in exits])
        shares = as_form(expected, ScoreForm.PROBABILITIES)
        expected = np.where(early[:, None], shares, expected)
    close(results["scores"], expected)
    if tail == "labels":
        assert results["label"].tolist() == expected.argmax(1).tolist()
    exit_of = {row: answer.exit_index for answer in frame.answers for row in answer.rows}
    assert [exit_of[row] for row in range(rows)] == exits


def test_a_batch_has_hits_at_both_exits_and_misses() -> None:
    """Else the tests above would say little."""
    _, exits = by_hand(served(), images(21))
    assert set(exits) == {None, 0, 1}


def test_an_evaluation_that_is_not_done_yet_delays_nothing() -> None:
    model, inputs, exit_thread = served(), images(8), StagedExitThread()
    results = finish(start(model, inputs, exit_thread))
    assert len(exit_thread.taken) == 2
    expected = model.whole.run({"image": inputs})["scores"]
    close(results["scores"], expected)


def test_a_hit_ends_the_job_at_the_next_boundary() -> None:
    model, exit_thread = served(exits=(0, 1, 2, 3)), StagedExitThread()
    _, exits = by_hand(model, images(21))
    row = exits.index(0)
    frame = start(model, images(21)[row : row + 1], exit_thread)
    while not exit_thread.taken:
        assert not frame.step()
    before = frame.position
    exit_thread.perform()
    assert frame.step()
    assert frame.position == before
    assert frame.take_answers()[0].exit_index == 0


def test_answered_rows_leave_at_once_and_the_rest_goes_on_without_them() -> None:
    model, inputs, exit_thread = served(exits=(0, 1, 2, 3)), images(21), StagedExitThread()
    _, exits = by_hand(model, inputs)
    early = [row for row, exit_index in enumerate(exits) if exit_index == 0]
    frame = start(model, inputs, exit_thread)
    while not exit_thread.taken:
        frame.step()
    exit_thread.perform()
    frame.step()
    (answer,) = frame.take_answers()
    assert list(answer.rows) == early
    while not exit_thread.taken:
        assert not frame.step()
    assert len(exit_thread.taken[0].hidden) == 21 - len(early)
    assert exit_thread.taken[0].rows == tuple(row for row in range(21) if row not in early)


def test_where_exits_are_switched_off_rows_are_answered_bit_by_bit_as_without_caches() -> None:
    model, inputs = served(), images(21)
    results = finish(start(model, inputs, None, switched_off=frozenset({0, 1})))
    expected = model.cut.run({"image": inputs})
    for name, value in expected.items():
        np.testing.assert_array_equal(results[name], value)


def test_a_late_evaluation_answers_no_row_twice() -> None:
    """Both evaluations come in together: the second one hits rows that the first has answered."""
    model, inputs, exit_thread = served(), images(21), StagedExitThread()
    frame = start(model, inputs, exit_thread)
    while len(exit_thread.taken) < 2:
        assert not frame.step()
    exit_thread.perform()
    exit_thread.perform()
    results = finish(frame)
    rows = [row for answer in frame.answers for row in answer.rows]
    assert sorted(rows) == list(range(21))
    expected, _ = by_hand(model, inputs)
    close(results["scores"], expected)


def test_a_row_out_of_an_exits_distribution_is_answered_by_no_later_one() -> None:
    model, inputs = served(take=2), images(21)

    def suspicious(hidden: np.ndarray) -> ExitEvaluation:
        rows = len(hidden)
        scores = np.full(rows, -1e9, np.float32)
        return ExitEvaluation(scores, np.arange(rows) % 2 == 1, np.zeros((rows, 10), np.float32))

    first = model.cascade.exits[0]
    object.__setattr__(first, "evaluate", suspicious)
    frame = start(model, inputs, None)
    finish(frame)
    exit_of = {row: answer.exit_index for answer in frame.answers for row in answer.rows}
    assert {exit_of[row] for row in range(0, 21, 2)} == {None}
    assert 1 in {exit_of[row] for row in range(1, 21, 2)}


def test_a_row_alone_is_decided_as_it_is_in_a_batch() -> None:
    scores = np.array([0.2, 0.5, 0.9, 0.0, np.nan, 0.9], np.float32)
    near = np.arange(6) < 3
    logits = np.arange(12, dtype=np.float32).reshape(6, 2)

    def evaluate(hidden: Given) -> ExitEvaluation:
        rows = np.asarray(hidden)[:, 0].astype(int)
        return ExitEvaluation(scores[rows], near[rows], logits[rows], (-logits[rows],))

    rows = np.arange(6, dtype=np.float32)[:, None]
    every = evaluate_exit(evaluate, rows, 0.5)
    assert every is not None
    assert (every.hits, every.rejected) == ((1, 2, 5), (3, 4, 5))
    assert evaluate_exit(evaluate, rows[:1], 0.5) is None
    for row in range(1, 6):
        one = evaluate_exit(evaluate, rows[row : row + 1], 0.5)
        assert one is not None
        is_hit, is_rejected = row in every.hits, row in every.rejected
        assert (one.hits, one.rejected) == ((0,) * is_hit, (0,) * is_rejected)
        assert (one.logits is None) is not is_hit
        if is_hit:
            np.testing.assert_array_equal(one.logits, logits[row : row + 1])
            np.testing.assert_array_equal(one.others[0], -logits[row : row + 1])


def test_the_exit_thread_answers_as_the_models_own_thread_does() -> None:
    class RememberingExitThread(ExitThread):
        def __init__(self) -> None:
            self.taken: list[Ticket] = []
            super().__init__()

        def offer(self, ticket: Ticket) -> bool:
            self.taken.append(ticket)
            return super().offer(ticket)

    exit_thread = RememberingExitThread()
    model, inputs = served(layers=12, exits=(1, 3)), images(21)
    expected, exits = by_hand(model, inputs)
    frame = start(model, inputs, exit_thread)
    while not frame.step():
        deadline_s = time.monotonic() + 60
        while any(ticket.outcome is None for ticket in exit_thread.taken):
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
    exit_thread.close()
    close(frame.results()["scores"], expected)
    exit_of = {row: answer.exit_index for answer in frame.answers for row in answer.rows}
    assert [exit_of[row] for row in range(21)] == exits


def test_a_stricter_level_is_used_where_it_is_asked_for() -> None:
    model = served()
    assert model.cascade.level(None) is model.cascade.levels[0]
    assert model.cascade.level(0.98) is model.cascade.levels[1]
    assert model.cascade.level(0.999) is None


def test_only_the_requested_outputs_are_answered() -> None:
    model = served()
    frame = start(model, images(21), None, ["label"])
    assert list(finish(frame)) == ["label"]


def test_an_evaluation_that_fails_leaves_its_rows_to_the_model() -> None:
    model, inputs = served(take=1), images(4)

    def broken(hidden: np.ndarray) -> ExitEvaluation:
        raise RuntimeError("out of order")

    for exit_ in model.cascade.exits:
        object.__setattr__(exit_, "evaluate", broken)
    frame = start(model, inputs, None)
    results = finish(frame)
    expected = model.whole.run({"image": inputs})["scores"]
    close(results["scores"], expected)
    assert str(frame.error) == "out of order"


def test_a_busy_exit_thread_turns_further_evaluations_away() -> None:
    exit_thread, gate = ExitThread(), threading.Event()

    def slow(hidden: np.ndarray) -> ExitEvaluation:
        gate.wait(30)
        return ExitEvaluation(np.zeros(1), np.ones(1, bool), np.zeros((1, 2), np.float32))

    def ticket() -> Ticket:
        return Ticket(0, slow, 0.5, np.zeros((1, 2), np.float32), (0,))

    first = ticket()
    assert exit_thread.offer(first)
    waiting = 0
    while exit_thread.offer(ticket()):  # one may wait behind the one that runs
        waiting += 1
        time.sleep(0.01)
    assert waiting <= 2
    gate.set()
    exit_thread.close()
    assert first.outcome is not None


def test_a_cascade_of_another_model_has_no_place() -> None:
    other = served(layers=3, exits=(0, 1)).cut
    assert find_places(other.plan, other.graph, served(layers=6).cascade) is None


def test_a_cascade_of_a_model_that_needs_no_input_has_no_place() -> None:
    model = network()
    value = np.zeros((1, 3, SIDE, SIDE), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(value, "image"))
    other = served()
    assert find_places(other.cut.plan, graph_of(model), other.cascade) is None
