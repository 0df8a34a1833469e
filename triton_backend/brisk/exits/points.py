"""Where caches may sit: layer boundaries at which little is live (GATI, section 3.1; segments)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brisk.graph.program import Container, Program, ValueType

MOST_LIVE = 2
"""Values that may be live at a boundary: one, or two where a residual branch starts."""


@dataclass(frozen=True, slots=True)
class ExitPoint:
    """A boundary of a program.

    ``position``: layers done. ``value``: name of the hidden output that a cache reads.
    ``live``: everything that later layers read, ``value`` among it.
    """

    position: int
    value: str
    live: tuple[str, ...]


def exit_points(program: Program, last_position: int | None = None) -> tuple[ExitPoint, ...]:
    """All boundaries that can have a cache, in order; none behind ``last_position``.

    The hidden output is a float32 tensor of rank 2 to 4 with the batch as its first dimension,
    and so is everything else that is live: rows can leave a batch there.
    """
    batch = _batch_dimension(program)
    end = len(program.layers) if last_position is None else last_position
    found = []
    for position, live in enumerate(live_values(program), start=1):
        if position >= end:
            break
        value = _hidden_output(program, position, live, batch)
        if value is not None:
            found.append(ExitPoint(position, value, live))
    fewest = min((len(point.live) for point in found), default=0)
    return tuple(point for point in found if len(point.live) == fewest)


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


def live_values(program: Program) -> list[tuple[str, ...]]:
    """For the boundary behind each layer: computed values and inputs that later layers read.

    Weights are not among them, nor outputs that nothing reads any more.
    """
    alive = dict.fromkeys(variable.name for variable in program.inputs)
    reads = _last_reads(program)
    table = []
    for index, layer in enumerate(program.layers):
        alive.update(dict.fromkeys(name for name in layer.outputs if name))
        for name in [name for name in alive if reads.get(name, -1) <= index]:
            del alive[name]
        table.append(tuple(alive))
    return table


def _last_reads(program: Program) -> dict[str, int]:
    return {name: layer.index for layer in program.layers for name in layer.operands if name}


def _hidden_output(
    program: Program, position: int, live: tuple[str, ...], batch: str | int | None
) -> str | None:
    """The value that was made last, where all that is live consists of rows."""
    if not 0 < len(live) <= MOST_LIVE:
        return None
    if not all(_has_rows(program.type_of(name), batch) for name in live):
        return None
    made = [name for layer in program.layers[:position] for name in layer.outputs]
    computed = [name for name in live if name in made]
    if not computed:
        return None
    value = max(computed, key=made.index)
    kind = program.type_of(value)
    fits = kind.dtype == "float32" and kind.rank in (2, 3, 4)
    return value if fits else None


def _has_rows(kind: ValueType, batch: str | int | None) -> bool:
    return (
        kind.container is Container.TENSOR
        and bool(kind.shape)
        and batch is not None
        and kind.shape is not None
        and kind.shape[0] == batch
    )


def _batch_dimension(program: Program) -> str | int | None:
    """The first dimension of every input; None where they differ, or one has none."""
    shapes = [variable.type.shape for variable in program.inputs]
    first = {shape[0] if shape else None for shape in shapes}
    return first.pop() if len(first) == 1 else None
