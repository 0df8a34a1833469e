"""What layers cost on this machine, by solution: pooled from every preparation that measured.

`brisk prepare` measures each layer's candidates for its own model's plan. What their solutions
took, for a byte of weights and for a multiplication, serves starts of models that were never
prepared: the costs say whether a substitute beats waiting. Kept in ``$BRISK_CACHE_DIR``, a file
for each machine; without it, or where it cannot be read, nothing is known.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from brisk.artefacts.fingerprint import fingerprint_key, machine_fingerprint
from brisk.artefacts.place import cache_directory
from brisk.artefacts.store import publish
from brisk.ownership import make_private
from brisk.solutions.base import Problem, Solution

FADING = 0.5
"""What earlier preparations' measurements count for beside a new one's."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over layers: times in ns on one core, ``run`` being first runs."""

    layers: float = 0.0
    weight_bytes: float = 0.0
    load: float = 0.0
    multiplications: float = 0.0
    run: float = 0.0

    def plus(self, other: Totals, weight: float = 1.0) -> Totals:
        """``weight``: of these totals beside the other ones."""
        return Totals(
            self.layers * weight + other.layers,
            self.weight_bytes * weight + other.weight_bytes,
            self.load * weight + other.load,
            self.multiplications * weight + other.multiplications,
            self.run * weight + other.run,
        )


@dataclass(frozen=True, slots=True)
class StartCost:
    """Predicted for one layer, in ns on one core: loading it, and its first run."""

    load: float
    run: float

    @property
    def total(self) -> float:
        return self.load + self.run


class MachineCosts:
    """Totals by solution name; immutable."""

    def __init__(self, totals: Mapping[str, Totals]) -> None:
        self.totals = dict(totals)

    def of(self, solution: Solution, problem: Problem) -> StartCost | None:
        """None where nothing like it was measured."""
        known, count = self.totals.get(solution.name), multiplications(problem)
        if known is None or not (known.weight_bytes and known.multiplications and count):
            return None
        return StartCost(
            weight_bytes(problem) * known.load / known.weight_bytes,
            count * known.run / known.multiplications,
        )

    def favours(self, one: Solution, other: Solution, problem: Problem) -> bool:
        """Whether ``one``, from nothing to its answer, is known to take less than ``other``."""
        ours, theirs = self.of(one, problem), self.of(other, problem)
        return ours is not None and theirs is not None and ours.total < theirs.total

    def pooled(self, measured: Iterable[tuple[str, Problem, int, int]]) -> MachineCosts:
        """With newly measured layers: solution, problem, load and first run in ns."""
        fresh: dict[str, Totals] = {}
        for name, problem, load_ns, run_ns in measured:
            if count := multiplications(problem):
                layer = Totals(1.0, weight_bytes(problem), load_ns, count, run_ns)
                fresh[name] = fresh.get(name, Totals()).plus(layer)
        faded = {
            name: known.plus(fresh[name], FADING) if name in fresh else known
            for name, known in self.totals.items()
        }
        return MachineCosts({**fresh, **faded})


NOTHING_KNOWN = MachineCosts({})


def read_costs(device: torch.device) -> MachineCosts:
    """Of this machine; nothing where there is no file, or one that is no such file."""
    try:
        content = json.loads(_file(device).read_text())
        return MachineCosts(
            {str(name): Totals(*map(float, sums)) for name, sums in content.items()}
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return NOTHING_KNOWN


def write_costs(costs: MachineCosts, device: torch.device) -> None:
    """Keep them, whole or not at all; not at all where the cache cannot be written."""
    file = _file(device)
    content = {
        name: [sums.layers, sums.weight_bytes, sums.load, sums.multiplications, sums.run]
        for name, sums in sorted(costs.totals.items())
    }
    with contextlib.suppress(OSError):
        make_private(file.parent)
        publish(file, lambda open_file: open_file.write(json.dumps(content).encode()))


def _file(device: torch.device) -> Path:
    key = fingerprint_key(machine_fingerprint(str(device), 1))  # measured on one core
    return cache_directory() / f"costs-{key}.json"


def multiplications(problem: Problem) -> int:
    """Of one image or row, as far as the static types tell; 0 where they do not."""
    weight, result = problem.operand(1), problem.outputs[0].shape
    if weight is None or weight.constant is None or not result or weight.constant.ndim < 2:
        return 0
    each = weight.constant.size
    for size in result[2:] if problem.operator == "Conv" else result[1:-1]:
        each *= size if isinstance(size, int) else 1
    return each


def weight_bytes(problem: Problem) -> int:
    """Bytes of a layer's constant operands."""
    return sum(
        operand.constant.nbytes
        for operand in problem.operands
        if operand is not None and operand.constant is not None
    )
