"""Where a starting program's layers come from: an artefact, or the model file itself."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from brisk.artefacts.paged import PagedBlob
from brisk.errors import ArtefactError, InternalError
from brisk.execution.artefact import Artefact
from brisk.execution.cold_plan import raw_layer
from brisk.execution.joining import JoinedLayers, join_small_layers
from brisk.execution.layer_source import LayerSource
from brisk.execution.loaded_layer import LoadedLayer
from brisk.execution.loading import FramePlan, load_layer
from brisk.execution.machine_costs import NOTHING_KNOWN, MachineCosts
from brisk.execution.plan import LayerPlan, Plan, make_plan
from brisk.execution.run_source import RunSource
from brisk.execution.runs import DrawnRun
from brisk.execution.tables import RowLookUp, table_of
from brisk.graph.program import Program
from brisk.graph.reader import read_program
from brisk.segments.timeline import EventKind, Recorder, clock_ns
from brisk.solutions.base import Kernel, Problem, Solution
from brisk.solutions.catalogue import Catalogue
from brisk.solutions.problem import make_problem


class ModelSource(LayerSource):
    """Weights are transformed as layers are loaded.

    ``frame``: of the program that the layers become part of, where that is another reading of
    the same model. ``costs``: of this machine, where they are known. ``is_cold`` False: with the
    warm solutions from the start.
    """

    def __init__(
        self,
        plan: Plan,
        catalogue: Catalogue,
        recorder: Recorder,
        frame: FramePlan | None = None,
        *,
        costs: MachineCosts = NOTHING_KNOWN,
        is_cold: bool = True,
    ) -> None:
        self.frame = frame or FramePlan.of(plan.program)
        self._warm = plan.layers
        self._cold = [
            raw_layer(planned, catalogue, costs) if is_cold else planned for planned in plan.layers
        ]
        self._catalogue = catalogue
        self._recorder = recorder

    def planned(self, index: int) -> LayerPlan:
        return self._cold[index]

    def load(self, index: int, lane: str, stolen: bool) -> LoadedLayer:
        planned, add = self._cold[index], self._recorder.add
        started_ns = clock_ns()
        weights = planned.solution.transform(planned.problem)
        transformed_ns = add(lane, EventKind.TRANSFORM, index, started_ns, stolen)
        layer = load_layer(planned, self.frame, self._catalogue, weights)
        add(lane, EventKind.CREATE, index, transformed_ns, stolen)
        return layer

    def solution_names(self) -> list[str]:
        return [planned.solution.name for planned in self._warm]

    def has_skipped(self) -> bool:
        return bool(self.warm_layers())

    def warm_layers(self) -> list[int]:
        pairs = zip(self._cold, self._warm, strict=True)
        return [
            index for index, (cold, warm) in enumerate(pairs) if cold.solution is not warm.solution
        ]

    def load_warm(self, index: int) -> LoadedLayer:
        return load_layer(self._warm[index], self.frame, self._catalogue)

    def join(
        self, layers: Sequence[LoadedLayer], cuts: Collection[int] = ()
    ) -> JoinedLayers | None:
        return join_small_layers(self.frame.program, self._warm, layers, self.frame.slots, cuts)


class ArtefactSource(LayerSource):
    """Layers of an artefact; of the model itself from the first damaged blob on.

    ``damaged`` is called once with what was found, in the thread that found it.
    """

    def __init__(
        self,
        artefact: Artefact,
        model: Path,
        device: torch.device,
        catalogue: Catalogue,
        recorder: Recorder,
        damaged: Callable[[ArtefactError], None],
    ) -> None:
        self.frame = FramePlan.of(artefact.program)
        self._artefact = artefact
        self._model = model
        self._device = device
        self._catalogue = catalogue
        self._recorder = recorder
        self._damaged = damaged
        self._model_source: ModelSource | None = None
        self._lock = threading.Lock()
        self._runs = RunSource(artefact, self.frame, self._solution, self.load_warm)

    def load(self, index: int, lane: str, stolen: bool) -> LoadedLayer:
        try:
            layer = self._load_joined(index, lane, stolen)
            if layer is not None:
                return layer
            if not self.is_given_up:
                return self._load(index, lane, stolen)
        except ArtefactError as error:
            self._give_up(error)
        return self._fallback().load(index, lane, stolen)

    def solution_names(self) -> list[str]:
        return [layer.warm for layer in self._artefact.layers]

    def has_skipped(self) -> bool:
        if self.is_given_up:
            return self._fallback().has_skipped()
        return any(layer.warm != layer.solution for layer in self._artefact.layers)

    def warm_layers(self) -> list[int]:
        if self.is_given_up:
            others = self._fallback().warm_layers()
        else:
            layers = enumerate(self._artefact.layers)
            others = [
                index
                for index, layer in layers
                if layer.warm != layer.solution or layer.table is not None
            ]
        return sorted({*others, *self._runs.members()})

    def load_warm(self, index: int) -> LoadedLayer:
        if not self.is_given_up:
            try:
                return self._load_warm(index)
            except ArtefactError as error:
                self._give_up(error)
        return self._fallback().load_warm(index)

    def join(
        self, layers: Sequence[LoadedLayer], cuts: Collection[int] = ()
    ) -> JoinedLayers | None:
        if self.is_given_up:
            return self._fallback().join(layers, cuts)
        planned = [
            self._planned(index, self._solution(index, is_warm=True))
            for index in range(len(layers))
        ]
        kept = None if cuts else self._runs.join(layers)
        program, slots = self.frame.program, self.frame.slots
        try:
            return join_small_layers(
                program, planned, layers, slots, cuts, kept, self._has_weights
            )
        except ArtefactError as error:
            self._give_up(error)
            return self._fallback().join(layers, cuts)

    def _has_weights(self, run: DrawnRun) -> bool:
        """Whether what is not loaded yet is there. Raises ArtefactError where it is damaged."""
        needed = [place for place in run.places if place not in run.large_layers]
        if not all(map(self._artefact.has_raw, needed)):
            return False
        for place in needed:
            self._artefact.verify_raw(place)
        return True

    def _load_joined(self, index: int, lane: str, stolen: bool) -> LoadedLayer | None:
        """None where the layer is not part of a run. Raises ArtefactError."""
        started_ns = clock_ns()
        layer = self._runs.layer(index, is_damaged=self.is_given_up)
        if layer is not None and layer.writes:
            self._recorder.add(lane, EventKind.READ, index, started_ns, stolen)
        return layer

    def _load(self, index: int, lane: str, stolen: bool) -> LoadedLayer:
        artefact, add = self._artefact, self._recorder.add
        started_ns = clock_ns()
        artefact.verify(index)
        verified_ns = add(lane, EventKind.READ, index, started_ns, stolen)
        weights = artefact.weights(index)
        solution = self._solution(index)
        planned = self._planned(index, solution)
        if weights is None:
            weights = solution.transform(planned.problem)
        transformed_ns = add(lane, EventKind.TRANSFORM, index, verified_ns, stolen)
        layer = load_layer(planned, self.frame, self._catalogue, weights)
        table = artefact.table(index)
        if table is not None:
            layer = self._looking_up(layer, planned.problem, table)
        add(lane, EventKind.CREATE, index, transformed_ns, stolen)
        return layer

    def _looking_up(self, layer: LoadedLayer, problem: Problem, blob: PagedBlob) -> LoadedLayer:
        """The layer, verifying each row of its table that it reads, until it is loaded warm."""
        table, index = table_of(problem), problem.layer.index
        if table is None or table.constant is None:
            raise ArtefactError(f"{self._artefact.path}: layer {index} looks up no rows")

        def replacement(error: ArtefactError) -> Kernel:
            self._give_up(error)
            return self._fallback().load_warm(index).kernel

        rows = table.constant
        kernel = RowLookUp(layer.kernel, blob, len(rows), rows[0].nbytes, replacement)
        return dataclasses.replace(layer, kernel=kernel)

    def _load_warm(self, index: int) -> LoadedLayer:
        """The warm layer, from kept weights where it is the cold one, too."""
        kept = self._artefact.layers[index]
        if kept.warm == kept.solution and kept.tensors is not None:
            self._artefact.verify(index)
            weights = self._artefact.weights(index)
        else:
            self._artefact.verify_raw(index)
            weights = None
        planned = self._planned(index, self._solution(index, is_warm=True))
        return load_layer(planned, self.frame, self._catalogue, weights)

    def _solution(self, index: int, *, is_warm: bool = False) -> Solution:
        kept = self._artefact.layers[index]
        return self._artefact.solution(kept.warm if is_warm else kept.solution, self._catalogue)

    def _planned(self, index: int, solution: Solution) -> LayerPlan:
        return LayerPlan(self._problem(index), solution, ())

    def _problem(self, index: int) -> Problem:
        frame = self.frame
        layer = frame.program.layers[index]
        return make_problem(frame.program, layer, frame.constants, self._device)

    def _fallback(self) -> ModelSource:
        with self._lock:
            if self._model_source is None:
                program = read_program(self._model)
                _check_same(program, self.frame.program)
                plan = make_plan(program, self._device, self._catalogue)
                self._model_source = ModelSource(plan, self._catalogue, self._recorder, self.frame)
            return self._model_source

    def _give_up(self, error: ArtefactError) -> None:
        with self._lock:
            self.is_given_up = True
            damaged, self._damaged = self._damaged, _ignore
        damaged(error)


def _ignore(error: ArtefactError) -> None:
    return None


def _check_same(fresh: Program, kept: Program) -> None:
    """Both are readings of one model, so their layers make the same values."""
    if [layer.outputs for layer in fresh.layers] != [layer.outputs for layer in kept.layers]:
        raise InternalError(
            f"model '{kept.name}' was read otherwise when its artefact was made; load it again"
        )
