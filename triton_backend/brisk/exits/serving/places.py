"""Where in a loaded program rows can leave, and in which slots they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brisk.execution.loading import LoadedProgram
from brisk.exits.cascade import Cascade
from brisk.exits.points import exit_points, live_values
from brisk.exits.scores import slots_of
from brisk.graph.program import Program


@dataclass(frozen=True, slots=True)
class Places:
    """``exits``: by layers done, the exits there, each by index, and the slot that it reads.

    ``rows``: by layers done, the slots of everything that is live, where all of it has the batch
    as first dimension; rows can leave there. ``scores_slot``: of the model's own class scores.
    """

    exits: Mapping[int, tuple[tuple[int, int], ...]]
    rows: Mapping[int, tuple[int, ...]]
    scores_slot: int


def find_places(loaded: LoadedProgram, cascade: Cascade) -> Places | None:
    """The places of ``cascade`` in ``loaded``; None where it is of another program."""
    program, slots = loaded.program, slots_of(loaded)
    scores, layers = cascade.scores, range(len(program.layers))
    if scores.value not in slots or not {scores.layer, *scores.tail} <= set(layers):
        return None
    known = {point.position: point for point in exit_points(program, cascade.scores.layer)}
    for exit_ in cascade.exits:
        if known.get(exit_.point.position) != exit_.point:
            return None
    exits: dict[int, tuple[tuple[int, int], ...]] = {}
    for index, exit_ in enumerate(cascade.exits):
        position = exit_.point.position
        exits[position] = (*exits.get(position, ()), (index, slots[exit_.point.value]))
    return Places(exits, _row_slots(program, slots), slots[cascade.scores.value])


def _row_slots(program: Program, slots: Mapping[str, int]) -> dict[int, tuple[int, ...]]:
    firsts = {(variable.type.shape or ())[:1] for variable in program.inputs}
    batch = firsts.pop() if len(firsts) == 1 else ()
    found = {}
    for position, live in enumerate(live_values(program), start=1):
        shapes = [program.type_of(name).shape for name in live]
        if live and batch and all(shape and shape[:1] == batch for shape in shapes):
            found[position] = tuple(slots[name] for name in live)
    return found
