"""Embedding tables of starting programs: a request needs a few rows of what takes long to verify.

An encoder of 85 MB waited 5 ms of 38 for its table of 47 MB, before its first layer of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from brisk.artefacts.paged import PagedBlob
from brisk.errors import ArtefactError
from brisk.solutions.base import Kernel, Operand, Problem, Value

ReplaceKernel: TypeAlias = Callable[[ArtefactError], Kernel]

LEAST_BYTES = 1 << 20
"""Of a table; verifying less takes a tenth of a millisecond."""


def table_of(problem: Problem) -> Operand | None:
    """The constant matrix whose rows the layer looks up; None where it does anything else."""
    layer = problem.layer
    if (layer.main.operator, layer.main.domain) != ("Gather", "") or layer.epilogue:
        return None
    if problem.device.type != "cpu" or problem.attributes.get("axis", 0) != 0:
        return None
    table, places = problem.operands[0], problem.operands[1]
    if table is None or places is None or places.constant is not None:
        return None
    array = table.constant
    if array is None or array.ndim != 2 or array.dtype.kind not in "fiu":
        return None
    return table if array.nbytes >= LEAST_BYTES else None


class RowLookUp:
    """A kernel of such a layer that reads no row before it is verified. Thread-safe."""

    def __init__(
        self, kernel: Kernel, blob: PagedBlob, rows: int, row_bytes: int, replace: ReplaceKernel
    ) -> None:
        """``replace``: gives another kernel for the layer where the table is damaged."""
        self._kernel, self._blob, self._replace = kernel, blob, replace
        self._rows, self._row_bytes = rows, row_bytes
        self._is_damaged = False

    def __call__(self, places: torch.Tensor) -> Sequence[Value]:
        if not self._is_damaged:
            try:
                self._verify(places)
            except ArtefactError as error:
                self._kernel = self._replace(error)
                self._is_damaged = True
        return self._kernel(places)

    def _verify(self, places: torch.Tensor) -> None:
        """Places below zero count from the end; the kernel refuses those too far."""
        rows = places.reshape(-1).to(torch.int64).numpy()
        rows = rows + (rows < 0) * self._rows
        self._blob.verify_rows(rows[(rows >= 0) & (rows < self._rows)], self._row_bytes)
