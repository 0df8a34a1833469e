"""Selective reuse: a layer runs on a solution that is loaded instead of waiting for its own.

PASK, III-B. Where it helps on a CPU, and where not, is told in docs/cold-start.md: here code is
quick to make and weights are slow to lay out, so what a substitute saves is mostly the layout.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Collection, Sequence
from enum import Enum

from brisk.errors import BriskError
from brisk.execution.joining import JoinedLayers
from brisk.execution.layer_source import LayerSource
from brisk.execution.loaded_layer import LoadedLayer
from brisk.execution.loading import load_layer
from brisk.execution.machine_costs import MachineCosts
from brisk.execution.plan import LayerPlan
from brisk.execution.sources import ModelSource
from brisk.segments.table import LayerTable
from brisk.segments.timeline import EventKind, Recorder, clock_ns
from brisk.solutions.base import Solution
from brisk.solutions.catalogue import Catalogue, default_catalogue
from brisk.solutions.categories import CategoryCache, Instance

WORTH_NS = 500_000
"""What loads in less is not looked up by costs: a query beside lanes took 0.16 to 0.32 ms."""


class Search(Enum):
    """How a substitute is looked for: within the pattern, or everywhere (PaSK-R)."""

    CATEGORY = "category"
    EXHAUSTIVE = "exhaustive"


@functools.cache
def shared_cache() -> CategoryCache:
    """Of all models that this process starts: what one has loaded serves the others."""
    return CategoryCache(default_catalogue().residents())


class ReusingSource(LayerSource):
    """Algorithm 1 around a model's own layers.

    As in the paper without ``costs``: up to the milestone, the last layer that has run when the
    executor first has to wait, desired solutions are loaded; from then on a layer takes a
    substitute where one is loaded. With ``costs``: where the executor waits, and they say that
    from nothing to its answer the substitute takes less than the desired solution. ``attend``
    comes before the first load.
    """

    def __init__(
        self,
        source: ModelSource,
        cache: CategoryCache,
        search: Search,
        catalogue: Catalogue,
        recorder: Recorder,
        costs: MachineCosts | None = None,
        *,
        from_the_start: bool = False,
    ) -> None:
        self.frame = source.frame
        self.milestone: int | None = -1 if from_the_start else None
        self._caught_up: Callable[[], int | None] = lambda: None
        self._is_awaited: Callable[[], bool] = lambda: False
        self._source = source
        self._cache = cache
        self._search = search
        self._catalogue = catalogue
        self._recorder = recorder
        self._costs = costs
        self._substituted: set[int] = set()
        self._waited: set[int] = set()
        self._lock = threading.Lock()

    def attend(self, table: LayerTable) -> None:
        """Learn from the table that asks for layers when its executor waits."""
        self._caught_up = lambda: table.caught_up
        self._is_awaited = lambda: table.is_awaited

    @property
    def reused(self) -> int:
        """Layers that run on a substitute until they are warm."""
        return len(self._substituted)

    @property
    def waited(self) -> int:
        """Layers with substitutes of which by their costs none was a gain."""
        return len(self._waited - self._substituted)

    def solution_names(self) -> list[str]:
        return self._source.solution_names()

    def load(self, index: int, lane: str, stolen: bool) -> LoadedLayer:
        planned = self._source.planned(index)
        desired = Instance.of(planned.solution, planned.problem)
        if self._may_substitute(index, planned, desired):
            substitute = self._substitute(planned, index, lane)
            if substitute is not None:
                return substitute
        layer = self._source.load(index, lane, stolen)
        self._cache.add(desired)
        return layer

    def has_skipped(self) -> bool:
        return bool(self._substituted) or self._source.has_skipped()

    def warm_layers(self) -> list[int]:
        return sorted({*self._source.warm_layers(), *self._substituted})

    def load_warm(self, index: int) -> LoadedLayer:
        return self._source.load_warm(index)

    def join(
        self, layers: Sequence[LoadedLayer], cuts: Collection[int] = ()
    ) -> JoinedLayers | None:
        return self._source.join(layers, cuts)

    def _may_substitute(self, index: int, planned: LayerPlan, desired: Instance) -> bool:
        """Resident solutions have nothing to wait for. With costs, neither has a desired one
        whose code is there: what is left to load are weights, and those the costs count."""
        if self._costs is not None:
            if desired.solution.resident or not self._is_awaited():
                return False
            cost = self._costs.of(planned.solution, planned.problem)
            return cost is not None and cost.load >= WORTH_NS
        if self.milestone is None and (waited_for := self._caught_up()) is not None:
            self.milestone = waited_for - 1
        is_behind = self.milestone is not None and index > self.milestone
        return is_behind and desired not in self._cache

    def _substitute(self, planned: LayerPlan, index: int, lane: str) -> LoadedLayer | None:
        started_ns = clock_ns()
        solution = self._find(planned) if self._costs is None else self._cheaper(planned, index)
        started_ns = self._recorder.add(lane, EventKind.LOOKUP, index, started_ns)
        if solution is None:
            return None
        chosen = dataclasses.replace(planned, solution=solution)
        try:
            layer = load_layer(chosen, self.frame, self._catalogue)
        except BriskError:
            return None  # the desired one is there, and may succeed
        self._recorder.add(lane, EventKind.SUBSTITUTE, index, started_ns)
        with self._lock:
            self._substituted.add(index)
        return layer

    def _find(self, planned: LayerPlan) -> Solution | None:
        if self._search is Search.EXHAUSTIVE:
            found = self._cache.search(planned.problem)
        else:
            found = self._cache.substitute(planned.solution, planned.problem)
        return None if found is None else found.solution

    def _cheaper(self, planned: LayerPlan, index: int) -> Solution | None:
        """The first that by the costs beats waiting: of the desired solution's category, then of
        those whose code is in every process."""
        assert self._costs is not None
        problem, desired = planned.problem, planned.solution
        first = self._find(planned)
        others = (
            each
            for each in self._catalogue.residents()
            if Instance(each, ()).is_applicable(problem)
        )
        for solution in (first, *others):
            if solution is None or solution is desired:
                continue
            if self._costs.favours(solution, desired, problem):
                return solution
            with self._lock:
                self._waited.add(index)
        return None
