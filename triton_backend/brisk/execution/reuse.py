"""Selective reuse: a layer runs on a solution that is loaded instead of waiting for its own.

PASK, III-B. Where it helps on a CPU, and where not, is told in ARCHITECTURE.md: here code is
quick to make and weights are slow to lay out, so what a substitute saves is mostly the layout.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from brisk.execution.joining import JoinedLayers
from brisk.execution.loading import LoadedLayer, load_layer
from brisk.execution.plan import LayerPlan
from brisk.execution.sources import LayerSource, ModelSource
from brisk.execution.timeline import EventKind, Recorder, clock_ns
from brisk.solutions.base import Problem
from brisk.solutions.catalogue import Catalogue, default_catalogue
from brisk.solutions.categories import CategoryCache, Instance


class Search(Enum):
    """How a substitute is looked for: within the pattern, or everywhere (PaSK-R)."""

    CATEGORY = "category"
    EXHAUSTIVE = "exhaustive"


@dataclass(slots=True)
class Rates:
    """Running averages of this process: what loading and running cost. Thread-safe enough:
    a lost update of an average is an average still."""

    load_ns_per_byte: float = 0.0
    run_ns_per_multiplication: float = 0.0
    substitute_ns_per_multiplication: float = 0.0

    def learn(self, name: str, taken_ns: int, amount: int) -> None:
        """``amount``: of bytes or multiplications, as ``name`` says."""
        if amount > 0:
            known, now = getattr(self, name), taken_ns / amount
            setattr(self, name, now if not known else known + 0.25 * (now - known))

    def favours_substitute(self, weight_bytes: int, count: int) -> bool:
        """Whether running the substitute costs less than loading and running the desired one.

        Unknown rates favour nothing: the desired solution is certain to be good later.
        """
        if not (self.load_ns_per_byte and self.run_ns_per_multiplication):
            return False
        if not self.substitute_ns_per_multiplication:
            return False
        desired_ns = weight_bytes * self.load_ns_per_byte + count * self.run_ns_per_multiplication
        return count * self.substitute_ns_per_multiplication < desired_ns


@functools.cache
def shared_reuse() -> tuple[CategoryCache, Rates]:
    """Of all models that this process starts: what one has loaded or taught serves the others."""
    return CategoryCache(default_catalogue().residents()), Rates()


class ReusingSource(LayerSource):
    """Algorithm 1 around a model's own layers.

    Up to the milestone, the first layer that the executor has to wait for, desired solutions are
    loaded; from then on a layer takes a substitute where one is loaded. ``position`` tells where
    the executor is. ``rates`` None: reuse wherever possible, as the paper does; else only where
    they say that it is quicker.
    """

    def __init__(
        self,
        source: ModelSource,
        cache: CategoryCache,
        search: Search,
        catalogue: Catalogue,
        recorder: Recorder,
        rates: Rates | None = None,
        *,
        from_the_start: bool = False,
    ) -> None:
        self.frame = source.frame
        self.milestone: int | None = -1 if from_the_start else None
        self.position: Callable[[], int] = lambda: -1
        self._source = source
        self._cache = cache
        self._search = search
        self._catalogue = catalogue
        self._recorder = recorder
        self._rates = rates
        self._substituted: set[int] = set()
        self._lock = threading.Lock()

    @property
    def reused(self) -> int:
        """Layers that run on a substitute until they are warm."""
        return len(self._substituted)

    def solution_names(self) -> list[str]:
        return self._source.solution_names()

    def note_run(self, index: int, taken_ns: int) -> None:
        """The executor has run a layer: what that says of its kind.

        A resident solution is what substitutes are, also where it is the layer's own.
        """
        if self._rates is not None:
            planned = self._source.planned(index)
            spare = index in self._substituted or planned.solution.resident
            name = "substitute_ns_per_multiplication" if spare else "run_ns_per_multiplication"
            self._rates.learn(name, taken_ns, multiplications(planned.problem))

    def load(self, index: int, lane: str, stolen: bool) -> LoadedLayer:
        planned = self._source.planned(index)
        desired = Instance.of(planned.solution, planned.problem)
        if self.milestone is None and index and self.position() >= index:
            self.milestone = index - 1
        if self.milestone is not None and desired not in self._cache:
            substitute = self._substitute(planned, index, lane)
            if substitute is not None:
                return substitute
        started_ns = clock_ns()
        layer = self._source.load(index, lane, stolen)
        if self._rates is not None:
            self._rates.learn("load_ns_per_byte", clock_ns() - started_ns, weight_bytes(planned))
        self._cache.add(desired)
        return layer

    def warm_layers(self) -> list[int]:
        return sorted({*self._source.warm_layers(), *self._substituted})

    def load_warm(self, index: int) -> LoadedLayer:
        return self._source.load_warm(index)

    def join(
        self, layers: Sequence[LoadedLayer], cuts: Collection[int] = ()
    ) -> JoinedLayers | None:
        return self._source.join(layers, cuts)

    def _substitute(self, planned: LayerPlan, index: int, lane: str) -> LoadedLayer | None:
        problem = planned.problem
        if self._rates is not None and not self._rates.favours_substitute(
            weight_bytes(planned), multiplications(problem)
        ):
            return None
        started_ns = clock_ns()
        if self._search is Search.CATEGORY:
            found = self._cache.substitute(planned.solution, problem)
        else:
            found = self._cache.search(problem)
        started_ns = self._recorder.add(lane, EventKind.LOOKUP, index, started_ns)
        if found is None:
            return None
        chosen = dataclasses.replace(planned, solution=found.solution)
        layer = load_layer(chosen, self.frame, self._catalogue)
        self._recorder.add(lane, EventKind.CREATE, index, started_ns)
        with self._lock:
            self._substituted.add(index)
        return layer


def multiplications(problem: Problem) -> int:
    """Of one image or row, as far as the static types tell; 0 where they do not."""
    weight, result = problem.operand(1), problem.outputs[0].shape
    if weight is None or weight.constant is None or not result or weight.constant.ndim < 2:
        return 0
    each = weight.constant.size
    for size in result[2:] if problem.operator == "Conv" else result[1:-1]:
        each *= size if isinstance(size, int) else 1
    return each


def weight_bytes(planned: LayerPlan) -> int:
    """Bytes of a layer's constant operands."""
    operands = planned.problem.operands
    return sum(
        operand.constant.nbytes
        for operand in operands
        if operand is not None and operand.constant is not None
    )
