"""Attention of a sequence to itself by the compiled library: one product, then head by head.

The heads are read where the product has put them and written side by side: nothing is moved
between, and one layer stands where there were thirteen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Mapping
from typing import Any

import torch

from brisk.compiled.layer import AttentionEntry
from brisk.solutions.attention_blocked import MOST_KEYS
from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.binding import bound_kernel, constant_operands
from brisk.solutions.compiled_layer import (
    CompiledCall,
    CompiledLayer,
    Fused,
    library_refusal,
    padded_bias,
    panels,
)
from brisk.solutions.rules import attribute
from brisk.solutions.self_attention import MASK, SelfAttention, attend_by_torch, scale_of

_empty = torch.empty


class BlockedSelfAttention(Solution):
    """Float32 on the CPU; what ``SelfAttention`` knows otherwise."""

    name = "blocked_self_attention"
    pattern = Pattern.ATTENTION

    def __init__(self) -> None:
        self._plain = SelfAttention()

    def operators(self) -> frozenset[tuple[str, str]]:
        return self._plain.operators()

    def check(self, problem: Problem) -> Verdict:
        verdict = self._plain.check(problem)
        reason = library_refusal(problem) if verdict.ok else None
        return verdict if reason is None else refused(reason)

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """``panels`` and ``bias`` as the library wants them, plain float32 tensors."""
        weights = self._plain.transform(problem)
        matrix = weights["matrix"]
        return {"panels": panels(matrix), "bias": padded_bias(weights["bias"], matrix.shape[1])}

    def transformed_operands(self, problem: Problem) -> frozenset[int]:
        return self._plain.transformed_operands(problem)

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        matrix = problem.operands[1].constant  # type: ignore[union-attr]  # checked
        assert matrix is not None
        inputs, width = matrix.shape
        layer = CompiledLayer(weights, inputs, 3 * width, Fused())
        call = _Call(layer, inputs, attribute(problem, "heads", 0), scale_of(problem))
        return bound_kernel(problem, call, constant_operands(problem, len(problem.operands)))


class _Call(CompiledCall):
    """The kernel; keeps the record of shapes and strides for calls that are like the last one."""

    __slots__ = ("_address", "_entry", "_heads", "_inputs", "_key", "_layer", "_offsets", "_scale")

    def __init__(self, layer: CompiledLayer, inputs: int, heads: int, scale: float) -> None:
        super().__init__()
        self._layer, self._inputs, self._heads, self._scale = layer, inputs, heads, scale
        size = layer.outputs // (3 * heads)
        self._entry = AttentionEntry(heads=heads, width=size, value_width=size, scale=scale)
        self._address = ctypes.addressof(self._entry)
        self._offsets = (4 * heads * size, 8 * heads * size)  # bytes from a query to key and value
        self._key: Hashable = None

    def __call__(self, source: torch.Tensor, *others: Any) -> torch.Tensor:
        mask = others[-1] if len(others) == MASK else None
        batch, length, inputs = source.shape
        if inputs != self._inputs:
            raise ValueError(
                f"matrices of {self._inputs} rows cannot take "
                f"an input of shape {tuple(source.shape)}"
            )
        width = self._layer.outputs // 3
        if not source.numel():
            return source.new_zeros((batch, length, width))
        made = self._layer.compute_rows(source)
        if length > MOST_KEYS:
            return attend_by_torch(made, self._heads, self._scale, mask)
        if mask is not None:
            mask = self._spread(mask, batch, length)
        self._describe(batch, length, None if mask is None else mask.stride())
        target = _empty((batch, length, width))
        query = made.data_ptr()
        to_key, to_value = self._offsets
        failed = self.library.attend(
            self._address, self.threads(), query, query + to_key, query + to_value,
            None if mask is None else mask.data_ptr(), target.data_ptr(),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"attention over {length} keys has no memory to work in")
        return target

    def _spread(self, mask: torch.Tensor, batch: int, length: int) -> torch.Tensor:
        """The mask as (batch, heads, length, length), a key's numbers side by side or one for all.

        Raises ValueError where it does not broadcast to that.
        """
        if mask.dim() < 4:
            mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
        if mask.shape[3] > 1 and mask.stride(3) != 1:
            mask = mask.contiguous()
        try:
            return mask.expand(batch, self._heads, length, length)
        except RuntimeError as error:
            raise ValueError(
                f"a mask of shape {tuple(mask.shape)} does not fit {length} keys"
            ) from error

    def _describe(self, batch: int, length: int, mask: tuple[int, ...] | None) -> None:
        """Bring the record up to date."""
        described = (batch, length, mask)
        if described == self._key:
            return
        entry, size = self._entry, self._entry.width
        entry.batch, entry.queries, entry.keys = batch, length, length
        row = 3 * self._heads * size
        for strides in (entry.query, entry.key, entry.value):
            strides[:] = (length * row, size, row)
        entry.target[:] = (length * row // 3, size, row // 3)
        if mask is not None:
            entry.mask[:] = mask
        self._key = described


SOLUTIONS: tuple[Solution, ...] = (BlockedSelfAttention(),)
