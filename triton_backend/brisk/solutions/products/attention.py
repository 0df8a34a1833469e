"""Scaled dot-product attention: Brisk's fused pattern, on torch's fused operator.

Operands: query (N, H, L, E), key (N, H, S, E), value (N, H, S, V) and, optionally, an additive
mask that broadcasts to (N, H, L, S). ``scale`` multiplies the scores.

Rows whose every key is masked with minus infinity are zero, as with ``zero_masked_rows``; without
it the definition makes them 0/0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from brisk.solutions.base import Applicability, Kernel, LoadContext, Problem, Solution, refused
from brisk.solutions.binding import bound_kernel, constant_operands
from brisk.solutions.epilogue import check_epilogue, number
from brisk.solutions.rules import FLOATS

_attention = torch.nn.functional.scaled_dot_product_attention


def scale_of(problem: Problem) -> float:
    """What scores are multiplied by: the attribute, else 1 over the root of a head's width.

    Precondition: FusedAttention's ``check`` has passed.
    """
    size = problem.operands[0].type.shape[3]  # type: ignore[union-attr,index]  # checked
    default = 1.0 / math.sqrt(size) if isinstance(size, int) and size else 1.0
    return number(problem.attributes, "scale", default)


class FusedAttention(Solution):
    """Scores are never written to memory whole."""

    name = "fused_attention"

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("brisk", "Attention")})

    def check(self, problem: Problem) -> Applicability:
        operands = [operand for operand in problem.operands if operand is not None]
        if len(operands) < 3:
            return refused("query, key or value is missing")
        dtypes = {operand.type.dtype for operand in operands}
        if len(dtypes) != 1 or operands[0].type.dtype not in FLOATS:
            return refused(
                f"dtypes {sorted(map(str, dtypes))}, one of {', '.join(sorted(FLOATS))} is known"
            )
        ranks = [operand.type.rank for operand in operands]
        if ranks[:3] != [4, 4, 4] or None in ranks or ranks[-1] > 4:  # type: ignore[operator]
            return refused(f"operands of rank {ranks}")
        return check_epilogue(problem)

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        scale = scale_of(problem)
        certain = have_equal_leading(problem)

        def compute(
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            mask: torch.Tensor | None = None,
        ) -> torch.Tensor:
            if mask is not None and mask.dim() < 4:
                mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
            if not certain:
                query, key, value = with_equal_leading(query, key, value)
            return _attention(query, key, value, mask, scale=scale)

        return bound_kernel(problem, compute, constant_operands(problem, len(problem.operands)))


def have_equal_leading(problem: Problem) -> bool:
    """Whether batch and heads of query, key and value are known to be the same."""
    leading = [operand.type.shape[:2] for operand in problem.operands[:3]]  # type: ignore[union-attr,index]
    return None not in leading[0] and leading[0] == leading[1] == leading[2]


def with_equal_leading(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
    """The tensors broadcast to common first two dimensions."""
    common = torch.broadcast_shapes(*[tensor.shape[:2] for tensor in tensors])  # type: ignore[no-untyped-call]
    return [tensor.expand(*common, -1, -1) for tensor in tensors]


SOLUTIONS: tuple[Solution, ...] = (FusedAttention(),)
