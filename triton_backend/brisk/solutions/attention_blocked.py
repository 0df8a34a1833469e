"""Attention by the compiled library: scores, softmax and the product with the values, by tiles.

A tile's scores never leave the cache, the result lies as the transposition behind it wants it, and
the helper threads that the linear layers around it use are still awake: 0.9 of the time of torch's
operator with one thread, 0.55 with two (128 queries and keys, 12 heads of 32).
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Mapping, Sequence

import torch

from brisk.compiled.layer import AttentionEntry
from brisk.solutions.attention import (
    FusedAttention,
    have_equal_leading,
    scale_of,
    with_equal_leading,
)
from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.binding import bound_kernel, constant_operands
from brisk.solutions.compiled_layer import CompiledCall, library_refusal

_attention = torch.nn.functional.scaled_dot_product_attention

MOST_KEYS = 4096
"""Beyond, a tile's scores leave the second cache, and torch takes keys by blocks."""


class BlockedAttention(Solution):
    """Float32 on the CPU; what ``FusedAttention`` knows otherwise."""

    name = "blocked_attention"
    pattern = Pattern.ATTENTION

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("brisk", "Attention")})

    def check(self, problem: Problem) -> Verdict:
        verdict = FusedAttention().check(problem)
        reason = library_refusal(problem) if verdict.ok else None
        return verdict if reason is None else refused(reason)

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        call = _Call(scale_of(problem), is_certain=have_equal_leading(problem))
        return bound_kernel(problem, call, constant_operands(problem, len(problem.operands)))


class _Call(CompiledCall):
    """The kernel; keeps the record of shapes and strides for calls that are like the last one."""

    __slots__ = ("_address", "_entry", "_is_certain", "_key", "_scale")

    def __init__(self, scale: float, *, is_certain: bool) -> None:
        super().__init__()
        self._scale, self._is_certain = scale, is_certain
        self._entry = AttentionEntry(scale=scale)
        self._address = ctypes.addressof(self._entry)
        self._key: Hashable = None

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not self._is_certain:
            query, key, value = with_equal_leading(query, key, value)
        if mask is not None and mask.dim() < 4:
            mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
        batch, heads, queries, _ = query.shape
        keys, width = value.shape[2:]
        if not (query.numel() and value.numel() and keys <= MOST_KEYS):
            return _attention(query, key, value, mask, scale=self._scale)
        query, key, value = (_with_rows(tensor) for tensor in (query, key, value))
        if mask is not None:
            if mask.shape[3] > 1:
                mask = _with_rows(mask)
            mask = mask.expand(batch, heads, queries, keys)
        target = torch.empty((batch, queries, heads, width)).transpose(1, 2)
        self._describe(query, key, value, mask, target)
        failed = self.library.attend(
            self._address, self.threads(), query.data_ptr(), key.data_ptr(), value.data_ptr(),
            None if mask is None else mask.data_ptr(), target.data_ptr(),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"attention over {keys} keys has no memory to work in")
        return target

    def _describe(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        target: torch.Tensor,
    ) -> None:
        """Bring the record up to date. Raises ValueError where the shapes do not fit together."""
        given = (query, key, value) if mask is None else (query, key, value, mask)
        described = tuple((tensor.shape, tensor.stride()) for tensor in given)
        if described == self._key:
            return
        self._key = None
        if key.shape != (*query.shape[:2], value.shape[2], query.shape[3]):
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (query, key, value))
            raise ValueError(f"query, key and value of shapes {shapes} do not fit together")
        entry = self._entry
        entry.batch, entry.heads, entry.queries, entry.width = query.shape
        entry.keys, entry.value_width = value.shape[2:]
        for name, tensor in (("query", query), ("key", key), ("value", value), ("target", target)):
            getattr(entry, name)[:] = tensor.stride()[:3]
        if mask is not None:
            entry.mask[:] = mask.stride()
        self._key = described


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with the numbers of its last dimension side by side."""
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


SOLUTIONS: Sequence[Solution] = (BlockedAttention(),)
