"""The categorical cache: loaded solutions by pattern, most recently used first (PASK III-C).

A solution is loaded when its code is there for problems of some specialisation. On a CPU that is
a primitive oneDNN has generated, or a resident one: code of torch's libraries that computes with
weights as they are in the model. One cache serves all models of a process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from brisk.solutions.base import Pattern, Problem, Solution


@dataclass(frozen=True, slots=True)
class Instance:
    """A loaded solution: what problems its code fits besides what ``check`` says."""

    solution: Solution
    specialisation: Hashable

    @classmethod
    def of(cls, solution: Solution, problem: Problem) -> Instance:
        return cls(solution, solution.specialisation(problem))

    def is_applicable(self, problem: Problem) -> bool:
        """PASK's IsApplicable: whether the code, as it is loaded, computes ``problem``."""
        if (problem.domain, problem.operator) not in self.solution.operators():
            return False
        if not self.solution.check(problem).ok:
            return False
        return self.solution.specialisation(problem) == self.specialisation


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """``lookups``: checks of applicability that ``queries`` took; ``hits``: queries answered."""

    queries: int
    hits: int
    lookups: int

    def since(self, before: CacheStatistics) -> CacheStatistics:
        """What has come to them; ``before`` is an earlier state of the same cache."""
        return CacheStatistics(
            self.queries - before.queries,
            self.hits - before.hits,
            self.lookups - before.lookups,
        )


MOST_INSTANCES = 1024
"""Of a pattern: as many primitives as oneDNN keeps for a process by itself."""


class CategoryCache:
    """Thread-safe. ``resident`` solutions are in it from the start, for any problem they take.

    A pattern's list holds MOST_INSTANCES others; the one used longest ago is forgotten first.
    """

    def __init__(self, resident: Iterable[Solution] = ()) -> None:
        self._lock = threading.Lock()
        self._lists: dict[Pattern, OrderedDict[Instance, None]] = {}
        self._queries = self._hits = self._lookups = 0
        for solution in resident:
            self._touch(Instance(solution, ()))

    def __contains__(self, instance: Instance) -> bool:
        with self._lock:
            return instance in self._lists.get(instance.solution.pattern, ())

    def add(self, instance: Instance) -> None:
        """It is loaded, or was used: to the head of its list."""
        with self._lock:
            self._touch(instance)

    def substitute(self, desired: Solution, problem: Problem) -> Instance | None:
        """GetSubSolution of Algorithm 1: only within the desired solution's pattern."""
        with self._lock:
            candidates = [*reversed(self._lists.get(desired.pattern, ()))]
        return self._first(candidates, problem)

    def search(self, problem: Problem) -> Instance | None:
        """PaSK-R's way: every loaded solution is checked, the first in no order but use."""
        with self._lock:
            candidates = [
                instance for known in self._lists.values() for instance in reversed(known)
            ]
        return self._first(list(self._exhausted(candidates, problem)), None)

    def statistics(self) -> CacheStatistics:
        with self._lock:
            return CacheStatistics(self._queries, self._hits, self._lookups)

    def _first(self, candidates: list[Instance], problem: Problem | None) -> Instance | None:
        """The first that applies, all of them where they are known to (``problem`` None)."""
        found: Instance | None = None
        lookups = 0
        for candidate in candidates:
            if problem is None:
                found = candidate
                break
            lookups += 1
            if candidate.is_applicable(problem):
                found = candidate
                break
        with self._lock:
            self._queries += 1
            self._lookups += lookups
            if found is not None:
                self._hits += 1
                self._touch(found)
        return found

    def _exhausted(self, candidates: list[Instance], problem: Problem) -> Iterator[Instance]:
        fit = [candidate for candidate in candidates if candidate.is_applicable(problem)]
        with self._lock:
            self._lookups += len(candidates)
        yield from fit

    def _touch(self, instance: Instance) -> None:
        """To the end of its list, which is its head in PASK's words. The lock is held."""
        known = self._lists.setdefault(instance.solution.pattern, OrderedDict())
        known[instance] = None
        known.move_to_end(instance)
        if len(known) > MOST_INSTANCES:
            oldest = next(each for each in known if not each.solution.resident)
            del known[oldest]
