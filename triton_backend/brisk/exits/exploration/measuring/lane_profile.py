"""What a look-up costs the model on this machine, in the lane and in the model's own thread."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from brisk.exits.base_model import BaseModel
from brisk.exits.exploration.measuring.profile import MOST_SECONDS, WARM_UP
from brisk.exits.exploration.problem import LaneCost
from brisk.exits.heads.lookup_model import ReadyLookUp
from brisk.exits.serving.lane import LookUpLane, LookUpOutcome, Ticket, look_up

TURNS = 100
"""In which the burden of a look-up is measured: a few hundredths of the model's time."""


def lane_cost(
    base: BaseModel,
    inputs: Mapping[str, np.ndarray],
    ready: ReadyLookUp,
    hidden: np.ndarray,
) -> LaneCost:
    """Measured by running the model without a look-up, with one in the lane in its first half that
    misses or hits, and with one in this thread there, in turns, which are compared within each.

    ``base`` stops at every boundary that a cache may have: there its thread notices soon what the
    lane has found.
    """
    lane = LookUpLane()
    hidden = hidden[:1]
    turns: list[dict[_Way, _Turn]] = []
    begun_s = time.perf_counter()
    for turn in range(WARM_UP + TURNS):
        if turn in (1, WARM_UP):
            turns = []
        made = {}
        for way in random.sample(list(_Way), len(_Way)):
            threshold = -1.0 if way is _Way.HITTING else 2.0
            ticket = Ticket(0, ready, threshold, hidden, (0,))
            made[way] = _run_with(base, inputs, ticket, lane, way)
        turns.append(made)
        if turn > 4 and time.perf_counter() - begun_s > MOST_SECONDS:
            break
    lane.close()

    def median(of: Callable[[dict[_Way, _Turn]], float]) -> float:
        return statistics.median(map(of, turns))

    alone_s = median(lambda one: one[_Way.WITHIN].look_up_s)
    noticed_s = median(lambda one: one[_Way.HITTING].look_up_s)
    beside_s = median(lambda one: one[_Way.MISSING].whole_s - one[_Way.NONE].whole_s)
    within_s = median(lambda one: one[_Way.WITHIN].whole_s - one[_Way.NONE].whole_s) - alone_s
    return LaneCost(max(0.0, noticed_s - alone_s), max(0.0, beside_s), max(0.0, within_s))


class _Way(Enum):
    """Of a look-up in a run: not at all, in the lane, in the model's own thread."""

    NONE = auto()
    MISSING = auto()
    HITTING = auto()
    WITHIN = auto()


@dataclass(frozen=True, slots=True)
class _Turn:
    """A run of the model; ``look_up_s``: until its frame, or this thread, had the outcome."""

    whole_s: float
    look_up_s: float


def _run_with(
    base: BaseModel,
    inputs: Mapping[str, np.ndarray],
    ticket: Ticket,
    lane: LookUpLane,
    way: _Way,
) -> _Turn:
    """One run, the ticket looked up behind its first quarter; it ends with a hit."""
    quarter = len(base.plan.segments) // 4
    offered_s = noticed_s = None
    frame = base.start(inputs)
    started_s = time.perf_counter()
    finished = False
    while not finished:
        finished = frame.step()
        if offered_s is None and frame.layers_done >= quarter:
            ticket.hidden = ticket.hidden.copy()
            offered_s = time.perf_counter()
            if way is _Way.WITHIN:
                found = look_up(ticket.look_up, ticket.hidden, ticket.threshold)
                ticket.outcome = found or LookUpOutcome((), None)
            elif way is not _Way.NONE:
                lane.offer(ticket)
        if noticed_s is None and ticket.outcome is not None:
            noticed_s = time.perf_counter()
            finished = finished or way is _Way.HITTING
    ended_s = time.perf_counter()
    look_up_s = (noticed_s or ended_s) - (offered_s or started_s)
    return _Turn(ended_s - started_s, look_up_s)
