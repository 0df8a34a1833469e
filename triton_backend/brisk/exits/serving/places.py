"""Where in a model's segments rows can leave, and which values exits read there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brisk.errors import InvalidModelError
from brisk.exits.base_model import live_at
from brisk.exits.cascade import Cascade
from brisk.exits.model_graph import ModelGraph
from brisk.exits.scores import Tail
from brisk.segments.model.graph_names import single_values
from brisk.segments.source import SegmentPlan


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """``exits``: by segments done, the exits there, each by index, and the value that it reads.

    ``rows``: segments done where all that is live has the batch as first dimension; rows can leave
    there. ``tail``: from class scores to the outputs.
    """

    exits: Mapping[int, tuple[tuple[int, str], ...]]
    rows: frozenset[int]
    tail: Tail


def find_places(plan: SegmentPlan, graph: ModelGraph, cascade: Cascade) -> Places | None:
    """The places of ``cascade`` in segments of ``graph``; None where it is of another model.

    Exits behind which ``plan`` is not cut have none: those in reserve need none.
    """
    known = single_values(graph.graph)
    for exit_ in cascade.exits:
        point = exit_.point
        if known.get(point.value) != point.position or not graph.has_rows(point.value):
            return None
        if point.position >= cascade.scores.position:
            return None
    try:
        tail = Tail(graph, cascade.scores)
    except InvalidModelError:
        return None
    boundaries: dict[str, int] = {}
    rows = set()
    table = live_at(plan)
    for done, live in enumerate(table[1:-1], start=1):
        if len(live) == 1:
            boundaries.setdefault(live[0], done)
        if live and all(graph.has_rows(name) for name in live):
            rows.add(done)
    exits: dict[int, tuple[tuple[int, str], ...]] = {}
    for index, exit_ in enumerate(cascade.exits):
        done = boundaries.get(exit_.point.value, 0)
        if done:
            exits[done] = (*exits.get(done, ()), (index, exit_.point.value))
    return Places(exits, frozenset(rows), tail)


def has_taps(plan: SegmentPlan, cascade: Cascade) -> bool:
    """Whether ``plan`` is cut behind all that ``cascade`` needs."""
    single = {live[0] for live in live_at(plan)[1:-1] if len(live) == 1}
    return single.issuperset(cascade.taps)
