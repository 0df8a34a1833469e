"""A frame that answers easy rows early; without hits it does what a ``SegmentFrame`` does.

``Places`` says where in a model's segments rows can leave, and which values exits read there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brisk.errors import InternalError, InvalidModelError
from brisk.exits.base_model import live_at
from brisk.exits.cascade import Cascade, Exit, Level
from brisk.exits.heads.exit_model import Given, given
from brisk.exits.model_graph import ModelGraph
from brisk.exits.scores import Tail, as_form
from brisk.exits.serving.exit_thread import ExitOutcome, ExitThread, Ticket, evaluate_exit
from brisk.segments.frame import SegmentFrame
from brisk.segments.model.graph_names import single_values
from brisk.segments.program import SegmentProgram
from brisk.segments.source import SegmentPlan


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The places of a cascade's exits in the segments of a model."""

    exits: Mapping[int, tuple[tuple[int, str], ...]]
    """The exits by the number of segments done: each exit's index, and the value that it reads."""
    rows: frozenset[int]
    """The numbers of segments done after which rows can leave: the first dimension of every live
    value is the batch."""
    tail: Tail
    """The nodes from the class scores to the outputs."""


def find_places(plan: SegmentPlan, graph: ModelGraph, cascade: Cascade) -> Places | None:
    """Return the places of ``cascade`` in the segments of ``graph``; None if it is of another
    model.

    Exits behind which ``plan`` is not cut have no place; those in reserve need none.
    """
    known = single_values(graph.graph)
    inputs = [each.name for each in graph.needed]
    may_stand_in_front = graph.all_have_rows
    if may_stand_in_front:
        known[inputs[0]] = 0
    for exit_ in cascade.exits:
        point = exit_.point
        if known.get(point.value) != point.position or not graph.may_have_rows(point.value):
            return None
        if exit_.reads_input != (point.position == 0) and not (
            exit_.reads_input and may_stand_in_front
        ):
            return None
        if exit_.reads_input and exit_.shape and len(inputs) > 1:
            return None
        if point.position >= cascade.scores.position:
            return None
    try:
        tail = Tail(graph, cascade.scores)
    except InvalidModelError:
        return None
    boundaries: dict[str, int] = {inputs[0]: 0} if may_stand_in_front else {}
    rows = {0} if may_stand_in_front else set()
    table = live_at(plan)
    for done, live in enumerate(table[1:-1], start=1):
        for name in live:
            boundaries.setdefault(name, done)
        if live and all(graph.has_rows(name) for name in live):
            rows.add(done)
    exits: dict[int, tuple[tuple[int, str], ...]] = {}
    for index, exit_ in enumerate(cascade.exits):
        place = boundaries.get(exit_.point.value)
        if place is not None:
            value = inputs[0] if exit_.reads_input else exit_.point.value
            exits[place] = (*exits.get(place, ()), (index, value))
    return Places(exits, frozenset(rows), tail)


def has_taps(plan: SegmentPlan, cascade: Cascade) -> bool:
    """Whether ``plan`` is cut behind all values that ``cascade`` needs."""
    live = {name for names in live_at(plan)[1:-1] for name in names}
    return live.issuperset(cascade.taps)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The answer to some rows, by an exit or by the base model."""

    rows: tuple[int, ...]
    """The numbers of the rows."""
    values: Mapping[str, np.ndarray]
    """The requested outputs by name, their rows in the order of ``rows``."""
    exit_index: int | None
    """The exit that answered; None: the base model did."""
    logits: np.ndarray | None
    """The exit's logits, [rows, classes]; None if the base model answered."""
    others: tuple[np.ndarray, ...] = ()
    """The exit's other outputs, [rows, ...] each."""


class ExitingFrame:
    """Runs a program segment by segment and offers hidden outputs to an exit thread.

    Rows that an exit answers leave at the next boundary where all live values have rows; the rest
    goes on as a smaller batch. Like a ``SegmentFrame`` it belongs to one thread at a time.
    """

    def __init__(
        self,
        program: SegmentProgram,
        cascade: Cascade,
        places: Places,
        level: Level,
        exit_thread: ExitThread | None,
        inputs: Mapping[str, np.ndarray],
        requested: Sequence[str] | None = None,
        switched_off: frozenset[int] = frozenset(),
    ) -> None:
        """``exit_thread`` None: exits are evaluated in this thread, before the model goes on.

        Raises InvalidRequestError as ``SegmentFrame`` does.
        """
        self._frame = SegmentFrame(program, inputs, requested)
        self._inputs = inputs
        self._is_new = 0 in places.exits
        self.cascade = cascade
        """The version that answers."""
        self._places = places
        self._level = level
        self.accuracy = level.accuracy
        """The share of its early answers that is promised to be the model's own."""
        self._exit_thread = exit_thread
        self._switched_off = switched_off
        self._requested = None if requested is None else tuple(requested)
        self._rows = tuple(range(_row_count(inputs)))
        self.rows = len(self._rows)
        """The number of rows of the whole batch."""
        self._tickets: list[Ticket] = []
        self._leaving: set[int] = set()
        self._rejected: set[int] = set()
        """Rows that an exit found out of distribution."""
        self.answers: list[Answer] = []
        """The answers so far."""
        self._given = 0
        self.evaluated = [0] * len(cascade.exits)
        """The number of rows that each exit was evaluated for."""
        self.spent_ns = [0] * len(cascade.exits)
        """This thread's time for each exit's evaluations, or for handing them to the exit
        thread."""
        self.error: Exception | None = None
        """The first error that an evaluation raised; its rows were left to the model."""

    @property
    def early(self) -> ExitingFrame:
        """The frame itself, since learned caches may answer its rows."""
        return self

    @property
    def position(self) -> int:
        """The segments done so far for the rows that are still in the frame."""
        return self._frame.position

    @property
    def upcoming(self) -> str:
        """``SegmentFrame.upcoming``; empty if all rows are answered."""
        return self._frame.upcoming if self._rows else ""

    @property
    def is_finished(self) -> bool:
        """Whether all rows are answered."""
        return not self._rows

    def step(self) -> bool:
        """Use finished evaluations, and run a segment; return True if all rows are answered."""
        if self._tickets and self._take_evaluations():
            return True
        frame = self._frame
        if self._is_new:  # an evaluation in front of the model is a step of its own
            self._is_new = False
            return self._evaluate_here()
        if not frame.step():
            return self._evaluate_here()
        if self._rows:
            self._answer_rest()
        return not self._rows

    def _evaluate_here(self) -> bool:
        """Evaluate the exits of this boundary; return True if all rows are answered."""
        for index, value in self._places.exits.get(self._frame.position, ()):
            self._offer(index, value)
            if self._exit_thread is None and self._tickets and self._take_evaluations():
                return True
        return not self._rows

    def take_answers(self) -> list[Answer]:
        """Return the answers since the last call."""
        fresh = self.answers[self._given :]
        self._given = len(self.answers)
        return fresh

    def exit_name(self, exit_index: int | None) -> str:
        """Return an exit's name in ``brisk caches show``; ``model`` for None, the base model."""
        return "model" if exit_index is None else self.cascade.exits[exit_index].name

    def answerers(self, rows: Sequence[int]) -> list[str]:
        """Return what answered each of ``rows``, an exit or ``model``; [] if the model did all.

        Precondition: they are answered.
        """
        exits = {row: answer.exit_index for answer in self.answers for row in answer.rows}
        if all(exits[row] is None for row in rows):
            return []
        return [self.exit_name(exits[row]) for row in rows]

    @property
    def has_early_answers(self) -> bool:
        """Whether an exit has answered any row."""
        return any(answer.exit_index is not None for answer in self.answers)

    def answer_of(self, rows: Sequence[int]) -> dict[str, np.ndarray] | None:
        """Return the requested outputs of ``rows`` in order; None: one is not answered yet."""
        found = dict.fromkeys(rows)
        parts = [answer for answer in self.answers if not found.keys().isdisjoint(answer.rows)]
        order = [row for answer in parts for row in answer.rows]
        places = {row: place for place, row in enumerate(order)}
        if not parts or not found.keys() <= places.keys():
            return None
        in_order = order == list(rows)
        picked = None if in_order else np.array([places[row] for row in rows])
        return {
            name: _rows_of([answer.values[name] for answer in parts], picked)
            for name in parts[0].values
        }

    def results(self) -> dict[str, np.ndarray]:
        """Return the requested outputs. Raises InternalError if the frame is not finished."""
        if self._rows:
            raise InternalError(f"{len(self._rows)} rows are not answered yet")
        if len(self.answers) == 1 and list(self.answers[0].rows) == list(range(self.rows)):
            return dict(self.answers[0].values)
        values = self.answer_of(range(self.rows))
        if values is None:
            raise InternalError("a row was answered by nobody")
        return values

    def _offer(self, index: int, value: str) -> None:
        threshold = self._level.thresholds[index]
        if threshold == math.inf or index in self._switched_off:
            return
        exit_ = self.cascade.exits[index]
        if exit_.is_by_row and len(self._rows) > 1:
            return
        hidden: Given
        hidden = self._own_inputs(exit_) if exit_.reads_input else self._frame.value_at(value)
        if isinstance(hidden, np.ndarray) and hidden.shape != (len(self._rows), *exit_.shape):
            return
        begun_ns = time.monotonic_ns()
        ticket = Ticket(index, exit_.evaluate, threshold, hidden, self._rows)
        if self._exit_thread is None:
            ticket.outcome = evaluate_exit(exit_.evaluate, hidden, threshold)
            if ticket.outcome is not None:
                self._tickets.append(ticket)
        elif self._exit_thread.offer(ticket):
            self._tickets.append(ticket)
        else:
            return
        self.evaluated[index] += len(self._rows)
        self.spent_ns[index] += time.monotonic_ns() - begun_ns

    def _own_inputs(self, exit_: Exit) -> Given:
        """Return the model's own inputs, of the rows that are still in the frame."""
        inputs = self._inputs
        if len(self._rows) < self.rows:
            kept = list(self._rows)
            inputs = {name: array[kept] for name, array in inputs.items()}
        return given(exit_.shape, inputs)

    def _take_evaluations(self) -> bool:
        """Answer the rows of finished evaluations and let them leave; True: none is left."""
        while self._tickets and (outcome := self._tickets[0].outcome) is not None:
            ticket = self._tickets.pop(0)
            self.error = self.error or outcome.error
            if outcome.hits:
                self._answer_hits(ticket, outcome)
            self._rejected.update(ticket.rows[place] for place in outcome.rejected)
        if self._leaving and len(self._leaving) == len(self._rows):
            self._rows = ()
            return True
        if self._leaving and self._frame.position in self._places.rows:
            kept = [place for place, row in enumerate(self._rows) if row not in self._leaving]
            self._frame.keep_rows(np.array(kept, np.int64))
            self._rows = tuple(self._rows[place] for place in kept)
            self._leaving.clear()
        return False

    def _answer_hits(self, ticket: Ticket, outcome: ExitOutcome) -> None:
        """Answer an evaluation's rows except those that are answered or rejected already."""
        waiting = set(self._rows) - self._leaving - self._rejected
        fresh = [place for place, hit in enumerate(outcome.hits) if ticket.rows[hit] in waiting]
        if not fresh or outcome.logits is None:
            return
        rows = tuple(ticket.rows[outcome.hits[place]] for place in fresh)
        logits, others = outcome.logits, outcome.others
        if len(fresh) < len(outcome.hits):
            logits, others = logits[fresh], tuple(each[fresh] for each in others)
        values = self._places.tail.finish(as_form(logits, self.cascade.scores.form), others)
        answer = Answer(rows, self._wanted(values), ticket.exit_index, logits, others)
        self.answers.append(answer)
        self._leaving.update(rows)

    def _answer_rest(self) -> None:
        """Answer the rest of the rows by the base model, which has finished."""
        values = self._frame.results()
        own = [place for place, row in enumerate(self._rows) if row not in self._leaving]
        rows = tuple(self._rows[place] for place in own)
        if len(own) < len(self._rows):
            values = {name: value[own] for name, value in values.items()}
        if rows:
            self.answers.append(Answer(rows, values, None, None))
        self._rows = ()

    def _wanted(self, values: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if self._requested is None:
            return values
        return {name: values[name] for name in self._requested}


def _row_count(inputs: Mapping[str, np.ndarray]) -> int:
    first = next(iter(inputs.values()))
    return len(first) if first.ndim else 1


def _rows_of(parts: list[np.ndarray], picked: np.ndarray | None) -> np.ndarray:
    """Return all rows in order, or the ``picked`` ones; a single whole part is not copied."""
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return whole if picked is None else whole[picked]
