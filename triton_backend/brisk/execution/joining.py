"""Runs of small layers joined into one: where, and up to which batch.

A joined run cannot be interrupted, so it is bounded: it takes a millisecond at most, as predicted,
and larger batches run layer by layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from brisk.compiled.library import absence, wait_until_settled
from brisk.compiled.table import Kind
from brisk.graph.program import Dimension, Program
from brisk.native.drawing import sizes_of
from brisk.native.layers import draw_layer
from brisk.native.run import Outside, SmallRun
from brisk.native.sketch import RefusedError, Sketch, View
from brisk.solutions.base import Problem, Value
from brisk.solutions.problem import dynamic_operands

if TYPE_CHECKING:
    from brisk.execution.loading import LoadedLayer

LONGEST_NS = 1_000_000.0
"""Of a run, as predicted, on one thread."""

MOST_IMAGES = 64

_WORK = frozenset(
    {Kind.CONVOLUTION, Kind.DEPTHWISE, Kind.MAXIMUM_POOL, Kind.AVERAGE_POOL, Kind.SOFTMAX}
)


@dataclass(frozen=True, slots=True)
class JoinedLayers:
    """A program's layers, runs of small ones joined; for batches of up to ``most_images``.

    ``done[i]``: layers of the program done before the i-th of these; the last one is all.
    """

    layers: tuple[LoadedLayer, ...]
    most_images: int
    done: tuple[int, ...]


@dataclass(slots=True)
class _Draft:
    """Consecutive layers that can be one run, drawn into a sketch."""

    sketch: Sketch
    places: list[int] = field(default_factory=list)
    inputs: dict[str, View] = field(default_factory=dict)

    def extend(self, place: int, problem: Problem, planar: Collection[str]) -> None:
        """Draw the layer behind the others. Raises RefusedError, with the draft as it was.

        ``planar``: values that come channel by channel; others are what kernels make of feature
        maps, mostly channels-last.
        """
        sketch, inputs = self.sketch, dict(self.inputs)
        before = (dict(sketch.values), len(sketch.steps), len(sketch.areas), set(sketch.integers))
        costs = (sketch.image_ns, sketch.call_ns)
        try:
            for operand in dynamic_operands(problem):
                if operand.name not in sketch.values:
                    sizes, is_planar = sizes_of(operand.type, sketch), operand.name in planar
                    view = sketch.add_input(operand.name, len(self.inputs), sizes, is_planar)
                    self.inputs[operand.name] = view
            draw_layer(problem, sketch)
            if sketch.image_ns + sketch.call_ns > LONGEST_NS:
                raise RefusedError("the run would take too long")
        except RefusedError:
            sketch.values, steps, areas, sketch.integers = before
            del sketch.steps[steps:], sketch.areas[areas:]
            sketch.image_ns, sketch.call_ns = costs
            self.inputs = inputs
            raise
        self.places.append(place)

    @property
    def is_worth_it(self) -> bool:
        return len(self.places) > 1 and any(step.kind in _WORK for step in self.sketch.steps)


def executor_absence() -> str:
    """Why joined runs are computed layer by layer after all; empty where they are not.

    Compiles the executor if need be.
    """
    wait_until_settled()
    return absence()


def refusals(
    program: Program, problems: Sequence[Problem], cuts: Collection[int] = ()
) -> list[str | None]:
    """By layer: None where it is part of a run of small layers, else why it is not.

    ``cuts`` as in ``join_small_layers``.
    """
    found: list[str | None] = [None] * len(problems)
    drafts = _draft(program, problems, found, cuts)
    for draft in drafts:
        if not draft.is_worth_it:
            for place in draft.places:
                found[place] = "it stands alone"
    return found


def join_small_layers(
    program: Program,
    problems: Sequence[Problem],
    layers: Sequence[LoadedLayer],
    slots: Mapping[str, int],
    cuts: Collection[int] = (),
) -> JoinedLayers | None:
    """The layers with runs of small ones joined; None where there is nothing to join.

    ``layers`` are those of ``problems``, one each. No run crosses a boundary of ``cuts``, numbers
    of layers done: a frame stops there. Runs of a program with cuts give up the interpreter's
    lock, because something else computes beside it: the look-ups of its caches.
    """
    drafts = [
        draft
        for draft in _draft(program, problems, [None] * len(problems), cuts)
        if draft.is_worth_it
    ]
    joined: list[LoadedLayer] = []
    starts: list[int] = []
    done = 0
    most = MOST_IMAGES
    for draft in drafts:
        first, last = draft.places[0], draft.places[-1]
        made = _join(program, draft, layers, slots, unlocked=bool(cuts))
        if made is None:
            continue
        layer, images = made
        joined += [*layers[done:first], layer]
        starts += range(done, first + 1)
        most = min(most, images)
        done = last + 1
    if not joined:
        return None
    starts += range(done, len(layers) + 1)
    return JoinedLayers((*joined, *layers[done:]), most, tuple(starts))


def _draft(
    program: Program,
    problems: Sequence[Problem],
    found: list[str | None],
    cuts: Collection[int] = (),
) -> list[_Draft]:
    """All maximal runs; ``found`` takes the reasons of the layers that are in none."""
    batch = _batch(program)
    if batch is None or any(problem.device.type != "cpu" for problem in problems):
        found[:] = ["the inputs have no common first dimension, or not on the CPU"] * len(found)
        return []
    planar = {variable.name for variable in program.inputs}
    drafts = [_Draft(Sketch(batch))]
    for place, problem in enumerate(problems):
        if place in cuts:
            drafts.append(_Draft(Sketch(batch)))
        try:
            drafts[-1].extend(place, problem, planar)
        except RefusedError as error:
            found[place] = str(error)
            drafts.append(_Draft(Sketch(batch)))
            if drafts[-2].places:
                try:
                    drafts[-1].extend(place, problem, planar)
                    found[place] = None
                except RefusedError:
                    drafts.append(_Draft(Sketch(batch)))
    return [draft for draft in drafts if draft.places]


def _batch(program: Program) -> Dimension:
    """The first dimension that all inputs have; None where there is none."""
    found = {
        variable.type.shape[0] if variable.type.shape else None for variable in program.inputs
    }
    return found.pop() if len(found) == 1 else None


def _join(
    program: Program,
    draft: _Draft,
    layers: Sequence[LoadedLayer],
    slots: Mapping[str, int],
    *,
    unlocked: bool,
) -> tuple[LoadedLayer, int] | None:
    """The draft as one layer, and the greatest batch it takes."""
    sketch, members = draft.sketch, [layers[place] for place in draft.places]
    wanted = _outputs(program, draft)
    if not sketch.integers <= set(wanted):
        return None  # an int64 value needs room that only an output has
    results = []
    for index, name in enumerate(wanted):
        view = sketch.make_output(name, index)
        dtype = "int64" if name in sketch.integers else "float32"
        results.append(Outside.of(view, dtype))
    images = int((LONGEST_NS - sketch.call_ns) / max(sketch.image_ns, 1.0))
    images = min(max(images, 1), MOST_IMAGES)
    reads = tuple(slots[name] for name in draft.inputs)
    writes = tuple(slots[name] for name in wanted)
    by_layers = _LayerByLayer(members, reads, writes)
    inputs = [Outside.of(view, "float32") for view in draft.inputs.values()]
    is_whole = len(members) == len(layers)
    run = SmallRun(sketch, inputs, results, images, by_layers, unlocked, is_whole)
    died = {slot for member in members for slot in member.dead}
    dead = tuple(slot for slot in (*reads, *writes) if slot in died)
    joined = dataclasses.replace(members[0], kernel=run, reads=reads, writes=writes, dead=dead)
    return joined, images


def _outputs(program: Program, draft: _Draft) -> list[str]:
    """Values made within the run that are read behind it."""
    made = [name for place in draft.places for name in program.layers[place].outputs]
    behind = {variable.name for variable in program.outputs}
    for layer in program.layers[draft.places[-1] + 1 :]:
        behind.update(layer.operands)
    return [name for name in made if name in behind]


class _LayerByLayer:
    """The members' own kernels, one after the other."""

    def __init__(
        self, members: Sequence[LoadedLayer], reads: Sequence[int], writes: Sequence[int]
    ) -> None:
        self._members = tuple(members)
        self._reads = tuple(reads)
        self._writes = tuple(writes)

    def __call__(self, *operands: Value) -> Sequence[Value]:
        values = dict(zip(self._reads, operands, strict=True))
        for member in self._members:
            made = member.kernel(*[values[slot] for slot in member.reads])
            values.update(zip(member.writes, made, strict=False))
        return [values[slot] for slot in self._writes]
