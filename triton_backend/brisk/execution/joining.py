"""Runs of small layers joined into one: where, and up to which batch.

A joined run cannot be interrupted, so it is bounded: it takes a millisecond at most, as predicted,
and larger batches run layer by layer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from brisk.compiled.library import absence, wait_until_settled
from brisk.compiled.table import Kind
from brisk.execution.loaded_layer import LoadedLayer
from brisk.execution.plan import LayerPlan
from brisk.execution.runs import DrawnRun, as_steps
from brisk.graph.program import Dimension, Program
from brisk.native.drawing import sizes_of
from brisk.native.layers import draw_layer
from brisk.native.run import Outside
from brisk.native.sketch import RefusedError, Sketch, View
from brisk.solutions.problem import dynamic_operands

LONGEST_NS = 1_000_000.0
"""Of a run, as predicted, on one thread."""

MOST_IMAGES = 64

_WORK = frozenset(
    {
        *(Kind.CONVOLUTION, Kind.DEPTHWISE, Kind.LAYER, Kind.MAXIMUM_POOL, Kind.AVERAGE_POOL),
        Kind.SOFTMAX,
    }
)


@dataclass(frozen=True, slots=True)
class JoinedLayers:
    """A program's layers, runs of small ones joined; for batches of up to ``most_images``.

    ``done[i]``: layers of the program done before the i-th of these; the last one is all.
    ``has_large``: layers of the compiled library are among what is joined. ``wider``: the same for
    larger batches, without these.
    """

    layers: tuple[LoadedLayer, ...]
    most_images: int
    done: tuple[int, ...]
    has_large: bool = False
    wider: JoinedLayers | None = None

    def fitting(self, images: int) -> JoinedLayers | None:
        """The layers for a batch of so many; None where they stand alone."""
        if images <= self.most_images:
            return self
        return None if self.wider is None else self.wider.fitting(images)

    @classmethod
    def of(
        cls, layers: Sequence[LoadedLayer], runs: Sequence[tuple[DrawnRun, LoadedLayer]]
    ) -> JoinedLayers | None:
        """All layers of a program, those of ``runs``, which are in order, joined; None: no run."""
        if not runs:
            return None
        joined: list[LoadedLayer] = []
        starts: list[int] = []
        done = 0
        for run, layer in runs:
            joined += [*layers[done : run.first], layer]
            starts += range(done, run.first + 1)
            done = run.last + 1
        starts += range(done, len(layers) + 1)
        most = min(run.images for run, _ in runs)
        has_large = any(run.has_large for run, _ in runs)
        return cls((*joined, *layers[done:]), most, tuple(starts), has_large)


@dataclass(slots=True)
class _Draft:
    """Consecutive layers that can be one run, drawn into a sketch."""

    sketch: Sketch
    places: list[int] = field(default_factory=list)
    inputs: dict[str, View] = field(default_factory=dict)

    def extend(self, place: int, planned: LayerPlan, planar: Collection[str], large: bool) -> None:
        """Draw the layer behind the others. Raises RefusedError, with the draft as it was.

        ``planar``: values that come channel by channel; others are what kernels make of feature
        maps, mostly channels-last. ``large``: layers of the compiled library may be steps, too.
        """
        problem, sketch, inputs = planned.problem, self.sketch, dict(self.inputs)
        before = (dict(sketch.values), len(sketch.steps), len(sketch.areas), set(sketch.integers))
        costs = (sketch.image_ns, sketch.call_ns)
        try:
            for operand in dynamic_operands(problem):
                if operand.name not in sketch.values:
                    sizes, is_planar = sizes_of(operand.type, sketch), operand.name in planar
                    view = sketch.add_input(operand.name, len(self.inputs), sizes, is_planar)
                    self.inputs[operand.name] = view
            draw_layer(problem, sketch, planned.solution if large else None, place)
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


def refusals(program: Program, planned: Sequence[LayerPlan]) -> list[str | None]:
    """By layer: None where it is part of a run of small layers, else why it is not."""
    found: list[str | None] = [None] * len(planned)
    for draft in _draft(program, planned, found):
        if not draft.is_worth_it:
            for place in draft.places:
                found[place] = "it stands alone"
    return found


def drawn_runs(
    program: Program,
    planned: Sequence[LayerPlan],
    cuts: Collection[int] = (),
    *,
    large: bool = True,
) -> list[DrawnRun]:
    """The runs of small layers in order, as steps.

    No run crosses a boundary of ``cuts``, numbers of layers done: a frame stops there. ``large``
    False: without steps that are layers of the compiled library, so that runs take more images.
    """
    drafts = _draft(program, planned, [None] * len(planned), cuts, large)
    runs = (_drawn(program, draft) for draft in drafts if draft.is_worth_it)
    return [run for run in runs if run is not None]


def join_small_layers(
    program: Program,
    planned: Sequence[LayerPlan],
    layers: Sequence[LoadedLayer],
    slots: Mapping[str, int],
    cuts: Collection[int] = (),
    kept: JoinedLayers | None = None,
    is_usable: Callable[[DrawnRun], bool] = lambda run: True,
) -> JoinedLayers | None:
    """The layers with runs of small ones joined; None where there is nothing to join.

    ``layers`` are those of ``planned``, one each; ``kept`` what is joined already. Raises what
    ``is_usable`` raises.
    """

    def join(large: bool) -> JoinedLayers | None:
        runs = filter(is_usable, drawn_runs(program, planned, cuts, large=large))
        return _join(program, list(runs), layers, slots, unlocked=bool(cuts))

    joined = kept or join(large=True)
    if joined is None or not joined.has_large:
        return joined
    return dataclasses.replace(joined, wider=join(large=False))


def _join(
    program: Program,
    runs: Sequence[DrawnRun],
    layers: Sequence[LoadedLayer],
    slots: Mapping[str, int],
    *,
    unlocked: bool,
) -> JoinedLayers | None:
    """All ``layers`` with ``runs`` joined.

    ``unlocked``: they give up the interpreter's lock, where look-ups of learned caches compute
    beside them.
    """
    made = []
    for run in runs:
        if not all(layers[place].weights for place in run.large_layers):
            continue  # loaded with other solutions than the warm ones
        members = [layers[place] for place in run.places]
        load = functools.partial(_given, members)
        bound = run.bound(lambda place: as_steps(layers[place].weights))
        layer = bound.load(program, slots, members[0].solution, load, unlocked=unlocked)
        made.append((run, layer))
    return JoinedLayers.of(layers, made)


def _given(members: Sequence[LoadedLayer]) -> Sequence[LoadedLayer]:
    return members


def _draft(
    program: Program,
    layers: Sequence[LayerPlan],
    found: list[str | None],
    cuts: Collection[int] = (),
    large: bool = True,
) -> list[_Draft]:
    """All maximal runs; ``found`` takes the reasons of the layers that are in none."""
    batch = _batch(program)
    if batch is None or any(one.problem.device.type != "cpu" for one in layers):
        found[:] = ["the inputs have no common first dimension, or not on the CPU"] * len(found)
        return []
    planar = {variable.name for variable in program.inputs}
    drafts = [_Draft(Sketch(batch))]
    for place, planned in enumerate(layers):
        if place in cuts:
            drafts.append(_Draft(Sketch(batch)))
        try:
            drafts[-1].extend(place, planned, planar, large)
        except RefusedError as error:
            found[place] = str(error)
            drafts.append(_Draft(Sketch(batch)))
            if drafts[-2].places:
                try:
                    drafts[-1].extend(place, planned, planar, large)
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


def _drawn(program: Program, draft: _Draft) -> DrawnRun | None:
    """The draft with its outputs; None where it cannot be one run after all."""
    sketch, wanted = draft.sketch, _outputs(program, draft)
    if not sketch.integers <= set(wanted):
        return None  # an int64 value needs room that only an output has
    outputs = {}
    for index, name in enumerate(wanted):
        view = sketch.make_output(name, index)
        outputs[name] = Outside.of(view, "int64" if name in sketch.integers else "float32")
    images = int((LONGEST_NS - sketch.call_ns) / max(sketch.image_ns, 1.0))
    return DrawnRun(
        draft.places[0],
        draft.places[-1],
        {name: Outside.of(view, "float32") for name, view in draft.inputs.items()},
        outputs,
        min(max(images, 1), MOST_IMAGES),
        sketch,
    )


def _outputs(program: Program, draft: _Draft) -> list[str]:
    """Values made within the run that are read behind it."""
    made = [name for place in draft.places for name in program.layers[place].outputs]
    behind = {variable.name for variable in program.outputs}
    for layer in program.layers[draft.places[-1] + 1 :]:
        behind.update(layer.operands)
    return [name for name in made if name in behind]
