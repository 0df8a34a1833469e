"""Attention of a sequence to itself from its input: one product makes all heads, on any device.

Operands: source (N, L, K), matrix (K, H · E) and bias (H · E) of query, key and value, in turn,
and, optionally, an additive mask that broadcasts to (N, H, L, L). The result is (N, L, H · E).
Rows whose every key is masked with minus infinity are as in
``brisk.solutions.products.attention``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from brisk.solutions.base import Applicability, Kernel, LoadContext, Problem, Solution, refused
from brisk.solutions.binding import bound_kernel, constant_operands
from brisk.solutions.epilogue import check_epilogue, constant_tensor, number
from brisk.solutions.rules import FLOATS, attribute

_attention = torch.nn.functional.scaled_dot_product_attention
_nn: Any = torch._C._nn

WEIGHTS = range(1, 7)
"""Positions of the operands that must be constants."""

MASK = 7


class SelfAttention(Solution):
    """By torch's product and its fused attention."""

    name = "self_attention"

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("brisk", "SelfAttention")})

    def check(self, problem: Problem) -> Applicability:
        source, mask = problem.operand(0), problem.operand(MASK)
        if source is None or source.type.rank != 3 or source.constant is not None:
            return refused("the input is no variable of rank 3")
        if mask is not None and (mask.type.rank is None or mask.type.rank > 4):
            return refused(f"a mask of rank {mask.type.rank}")
        shapes = set()
        for position in WEIGHTS:
            operand = problem.operand(position)
            if operand is None:
                if position % 2:
                    return refused("a matrix is missing")
                continue
            if operand.constant is None:
                return refused(f"'{operand.name}' is not constant")
            if position % 2:
                shapes.add(operand.constant.shape)
            elif operand.constant.ndim != 1:
                return refused(f"a bias of shape {operand.constant.shape} is no row")
        heads = attribute(problem, "heads", 0)
        if len(shapes) != 1 or len(shape := shapes.pop()) != 2 or heads < 1 or shape[1] % heads:
            return refused("the matrices are not of one shape, in whole heads")
        dtypes = {operand.type.dtype for operand in problem.operands if operand is not None}
        if len(dtypes) != 1 or source.type.dtype not in FLOATS:
            return refused(f"dtypes {sorted(map(str, dtypes))}, not one floating one")
        return check_epilogue(problem)

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """``matrix`` (K, 3 · H · E) and ``bias``, of query, key and value side by side."""
        matrices = [constant_tensor(problem, position) for position in (1, 3, 5)]
        biases = [constant_tensor(problem, position) for position in (2, 4, 6)]
        rows: list[torch.Tensor] = []
        for matrix, bias in zip(matrices, biases, strict=True):
            assert matrix is not None
            rows.append(matrix.new_zeros(matrix.shape[1]) if bias is None else bias)
        return {"matrix": torch.cat(matrices, dim=1), "bias": torch.cat(rows)}  # type: ignore[arg-type]

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        transposed, bias = weights["matrix"].t(), weights["bias"]
        scale, heads = scale_of(problem), attribute(problem, "heads", 0)

        def compute(source: torch.Tensor, *others: Any) -> torch.Tensor:
            made = _nn.linear(source, transposed, bias)
            return attend_by_torch(made, heads, scale, others[-1] if len(others) == MASK else None)

        return bound_kernel(problem, compute, constant_operands(problem, len(problem.operands)))


def attend_by_torch(
    made: torch.Tensor, heads: int, scale: float, mask: torch.Tensor | None
) -> torch.Tensor:
    """``made``: (N, L, 3 · H · E), query, key and value side by side."""
    batch, length, width = made.shape
    split = made.view(batch, length, 3, heads, width // (3 * heads))
    query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
    if mask is not None and mask.dim() < 4:
        mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    result = _attention(query, key, value, mask, scale=scale)
    return result.transpose(1, 2).reshape(batch, length, width // 3)


def scale_of(problem: Problem) -> float:
    """What scores are multiplied by. Precondition: SelfAttention's ``check`` has passed."""
    matrix = problem.operands[1].constant  # type: ignore[union-attr]  # checked
    size = matrix.shape[1] // attribute(problem, "heads", 1)  # type: ignore[union-attr]
    return number(problem.attributes, "scale", 1.0 / math.sqrt(size) if size else 1.0)


SOLUTIONS: tuple[Solution, ...] = (SelfAttention(),)
