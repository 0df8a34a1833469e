"""Times on this machine: how long the base model takes to each layer, and a look-up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from brisk.execution import Frame, LoadedProgram
from brisk.exits.compiled_lookup import ready_look_up
from brisk.exits.lookup import LookUp
from brisk.exits.serving.lane import LookUpLane, Ticket, look_up
from brisk.solutions.base import Value

WARM_UP, RUNS = 5, 25
LOOK_UPS = 25
MOST_SECONDS = 2.0
"""A measurement ends by then, however few runs it has."""


@dataclass(frozen=True, slots=True)
class BaseProfile:
    """``reach_s``: from the start until so many layers are done, at boundaries; medians.

    ``total_s``: of the whole program; ``cut_s``: of one that has to stop at the boundaries.
    """

    reach_s: Mapping[int, float]
    total_s: float
    cut_s: float


def profile_base(
    whole: LoadedProgram, cut: LoadedProgram, inputs: Mapping[str, Value]
) -> BaseProfile:
    """Run the model some times, ``whole`` and, timed at each boundary, ``cut``, in turns."""
    steps: dict[int, list[float]] = {}
    totals: list[float] = []
    begun_s = time.perf_counter()
    with torch.inference_mode():
        for run in range(WARM_UP + RUNS):
            if run == WARM_UP or run == 1:
                steps, totals = {}, []
            started_s = time.perf_counter()
            frame = Frame(whole, inputs)
            while not frame.step():
                pass
            totals.append(time.perf_counter() - started_s)
            frame = Frame(cut, inputs)
            before_s, finished = time.perf_counter(), False
            while not finished:
                finished = frame.step()
                now_s = time.perf_counter()
                steps.setdefault(frame.layers_done, []).append(now_s - before_s)
                before_s = now_s
            if len(totals) > 2 and time.perf_counter() - begun_s > MOST_SECONDS:
                break
    reach_s, sum_s = {0: 0.0}, 0.0
    for position in sorted(steps):
        sum_s += statistics.median(steps[position])
        reach_s[position] = sum_s
    return BaseProfile(reach_s, statistics.median(totals), sum_s)


def look_up_seconds(network: LookUp, hidden: torch.Tensor) -> float:
    """Median time of a look-up of one row in this thread, decision included."""
    ready = ready_look_up(network, tuple(hidden.shape[1:]))
    ticket = Ticket(0, ready, 0.5, hidden[:1], (0,))
    times: list[float] = []
    begun_s = time.perf_counter()
    for run in range(3 + LOOK_UPS):
        started_s = time.perf_counter()
        look_up(ticket)
        if run >= 3 or not times:
            times.append(time.perf_counter() - started_s)
        if time.perf_counter() - begun_s > MOST_SECONDS / 4:
            break
    return statistics.median(times)


@dataclass(frozen=True, slots=True)
class LaneCost:
    """``handover_s``: what a look-up in the lane takes longer than in the same thread.

    ``burden_s``: what one that misses adds to the base model's time.
    """

    handover_s: float
    burden_s: float


def lane_cost(
    loaded: LoadedProgram, inputs: Mapping[str, Value], network: LookUp, hidden: torch.Tensor
) -> LaneCost:
    """Measured by running the model with and without a look-up in its first half, in turns."""
    lane = LookUpLane()
    alone_s = look_up_seconds(network, hidden)
    ready = ready_look_up(network, tuple(hidden.shape[1:]))
    quarter = len(loaded.layers) // 4
    plain: list[float] = []
    burdened: list[float] = []
    seen: list[float] = []
    begun_s = time.perf_counter()
    with torch.inference_mode():
        for run in range(2 * (WARM_UP + RUNS)):
            ticket = Ticket(0, ready, 2.0, hidden[:1], (0,))
            offered_s = noticed_s = None
            frame = Frame(loaded, inputs)
            started_s = time.perf_counter()
            finished = False
            while not finished:
                finished = frame.step()
                if run % 2 and offered_s is None and frame.layers_done >= quarter:
                    offered_s = time.perf_counter()
                    lane.offer(ticket)
                if offered_s and noticed_s is None and ticket.outcome is not None:
                    noticed_s = time.perf_counter()
            ended_s = time.perf_counter()
            if run >= 2 * WARM_UP or run < 2:
                (burdened if run % 2 else plain).append(ended_s - started_s)
                if offered_s:
                    seen.append((noticed_s or ended_s) - offered_s)
            if run > 8 and run % 2 and ended_s - begun_s > MOST_SECONDS:
                break
    lane.close()
    burden_s = statistics.median(burdened) - statistics.median(plain)
    return LaneCost(max(0.0, statistics.median(seen) - alone_s), max(0.0, burden_s))
