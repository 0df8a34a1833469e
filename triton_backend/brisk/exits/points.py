"""Where caches may sit: values that are all that is live (GATI, section 3.1; segments)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from brisk.exits.model_graph import ModelGraph
from brisk.segments.model.cutting import is_fused_with_next, predicted_times_ns
from brisk.segments.model.graph_names import is_in_order, single_values


@dataclass(frozen=True, slots=True)
class ExitPoint:
    """A value of a model, behind which it can be cut: nothing else is live there.

    ``position``: nodes of the graph done there. ``value``: name of the hidden output that a cache
    reads. ``share``: of the model's predicted time before it.
    """

    position: int
    value: str
    share: float = 0.0


def exit_points(graph: ModelGraph, last_position: int | None = None) -> tuple[ExitPoint, ...]:
    """All values that can have a cache, in order; none behind ``last_position`` nodes.

    A float32 tensor of rank 2 to 4 with the batch as its first dimension: rows can leave a batch
    there. Not in front of what ONNX Runtime fuses, unless there are no others.
    """
    if not is_in_order(graph.graph):
        return ()
    end = len(graph.graph.node) if last_position is None else last_position
    elapsed = list(accumulate(predicted_times_ns(graph.model), initial=0.0))
    total = elapsed[-1] or 1.0
    found = [
        ExitPoint(position, value, elapsed[position] / total)
        for value, position in single_values(graph.graph).items()
        if position < end and _fits(graph, value)
    ]
    free = [each for each in found if not is_fused_with_next(graph.graph, each.position)]
    return tuple(sorted(free or found, key=lambda each: each.position))


EARLIER = 1.5
"""Exponent by which points crowd at the start, where an answer saves most."""


def spread(points: Sequence[ExitPoint], reach_s: Sequence[float], count: int) -> tuple[int, ...]:
    """Indices of at most ``count`` of ``points``, spread over the time to reach them.

    Most of them lie early: there adapted caches of recurring traffic answer nearly all (GATI,
    Table 7). None lies at the very end, where an exit saves nothing.
    """
    if len(points) <= count:
        return tuple(range(len(points)))
    wanted = [reach_s[-1] * ((step + 1) / (count + 1)) ** EARLIER for step in range(count)]
    nearest = (min(range(len(points)), key=lambda i: abs(reach_s[i] - at_s)) for at_s in wanted)
    return tuple(sorted(set(nearest)))


def _fits(graph: ModelGraph, value: str) -> bool:
    kind = graph.types.get(value)
    return (
        kind is not None
        and graph.has_rows(value)
        and kind.dtype == "float32"
        and kind.rank in (2, 3, 4)
    )
