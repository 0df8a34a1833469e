"""Times on this machine: how long the base model takes to each layer, and a look-up."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from brisk.execution import Frame, LoadedProgram
from brisk.exits.compiled_lookup import ready_look_up
from brisk.exits.lookup import LookUp
from brisk.exits.serving.lane import LookUpLane, Ticket, look_up
from brisk.solutions.base import Value

WARM_UP, RUNS = 5, 25
LOOK_UPS = 25
TURNS = 100
"""In which the burden of a look-up is measured: a few hundredths of the model's time."""

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


def look_up_seconds(
    network: LookUp, hidden: torch.Tensor, before: Callable[[], None] | None = None
) -> float:
    """Median time of a look-up of one row in this thread, decision included.

    ``before`` each: the model, whose weights push a look-up's out of the processor's cache, where
    one after the other would find them. That is twice the time and more.
    """
    ready = ready_look_up(network, tuple(hidden.shape[1:]))
    hidden = as_made(hidden)
    times: list[float] = []
    begun_s = time.perf_counter()
    for run in range(3 + LOOK_UPS):
        if before is not None:
            before()
        ticket = Ticket(0, ready, 0.5, hidden.clone(), (0,))  # just made, as when it is served
        started_s = time.perf_counter()
        look_up(ticket)
        if run >= 3 or not times:
            times.append(time.perf_counter() - started_s)
        if time.perf_counter() - begun_s > MOST_SECONDS / 4:
            break
    return statistics.median(times)


def as_made(hidden: torch.Tensor) -> torch.Tensor:
    """The first row as layers make it: feature maps channels-last."""
    form = torch.channels_last if hidden.dim() == 4 else torch.contiguous_format
    return hidden[:1].contiguous(memory_format=form)


def run_of(loaded: LoadedProgram, inputs: Mapping[str, Value]) -> Callable[[], None]:
    """A run of the model, for what is measured behind one."""

    def run() -> None:
        with torch.inference_mode():
            frame = Frame(loaded, inputs)
            while not frame.step():
                pass

    return run


@dataclass(frozen=True, slots=True)
class LaneCost:
    """``handover_s``: what a look-up in the lane takes longer than in the same thread, until the
    frame notices. What one that misses adds to the base model's time: ``burden_s`` in the lane,
    and, in the model's own thread, ``wake_s`` besides the look-up itself.
    """

    handover_s: float
    burden_s: float
    wake_s: float = 0.0


def lane_cost(
    loaded: LoadedProgram, inputs: Mapping[str, Value], network: LookUp, hidden: torch.Tensor
) -> LaneCost:
    """Measured by running the model without a look-up, with one in the lane in its first half,
    and with one in this thread there, in turns. ``loaded`` stops at every boundary that an exit
    may have, so that what the lane has found is noticed soon.
    """
    lane = LookUpLane()
    hidden = as_made(hidden)
    alone_s = look_up_seconds(network, hidden, run_of(loaded, inputs))
    ready = ready_look_up(network, tuple(hidden.shape[1:]))
    quarter = len(loaded.layers) // 4
    taken: dict[bool | None, list[float]] = {None: [], False: [], True: []}
    seen: list[float] = []
    begun_s = time.perf_counter()
    with torch.inference_mode():
        for turn in range(WARM_UP + TURNS):
            for synchronous in random.sample(list(taken), len(taken)):
                ticket = Ticket(0, ready, 2.0, hidden, (0,))
                offered_s = noticed_s = None
                frame = Frame(loaded, inputs)
                started_s = time.perf_counter()
                finished = False
                while not finished:
                    finished = frame.step()
                    if offered_s is None and frame.layers_done >= quarter:
                        ticket.hidden = hidden.clone()
                        offered_s = time.perf_counter()
                        if synchronous is False:
                            lane.offer(ticket)
                        elif synchronous:
                            ticket.outcome = look_up(ticket)
                    if noticed_s is None and ticket.outcome is not None:
                        noticed_s = time.perf_counter()
                ended_s = time.perf_counter()
                if turn >= WARM_UP or turn == 0:
                    taken[synchronous].append(ended_s - started_s)
                    if synchronous is False and offered_s is not None:
                        seen.append((noticed_s or ended_s) - offered_s)
            if turn > 4 and ended_s - begun_s > MOST_SECONDS:
                break
    lane.close()
    plain, beside, within = (statistics.median(taken[way]) for way in (None, False, True))
    return LaneCost(
        max(0.0, statistics.median(seen) - alone_s),
        max(0.0, beside - plain),
        max(0.0, within - plain - alone_s),
    )
