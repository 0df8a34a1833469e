"""Matrix products, contractions and attention, of any two operands."""

from __future__ import annotations

import torch
from torch import Tensor

from brisk.solutions.base import Problem
from brisk.solutions.rules import FLOATS, Rule, anything, calls, takes


def _check_product(problem: Problem) -> str | None:
    """torch multiplies integer matrices on the CPU only; they wrap as ONNX's do."""
    dtypes = {operand.type.dtype for operand in problem.operands if operand is not None}
    if len(dtypes) != 1:
        return f"dtypes {sorted(map(str, dtypes))} differ"
    known = sorted(FLOATS)
    if problem.operator == "MatMul" and problem.device.type == "cpu":
        known += ["int32", "int64"]
    if problem.dtype() not in known:
        return f"dtype {problem.dtype()} is not one of {', '.join(known)}"
    ranks = [problem.rank(0), problem.rank(1)]
    return f"operands of rank {ranks}" if None in ranks or 0 in ranks else None


def _gemm(
    left: Tensor,
    right: Tensor,
    bias: Tensor | None = None,
    *,
    transA: int,
    transB: int,
    alpha: float,
    beta: float,
) -> Tensor:
    left, right = left.t() if transA else left, right.t() if transB else right
    if bias is None:
        result = torch.mm(left, right)
        return result if alpha == 1.0 else result.mul_(alpha)
    return torch.addmm(bias, left, right, beta=beta, alpha=alpha)


def _contract(*operands: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *operands)


PRODUCT: dict[str, Rule] = {
    "Gemm": Rule(calls(_gemm, transA=0, transB=0, alpha=1.0, beta=1.0), _check_product),
    "MatMul": Rule(calls(torch.matmul), _check_product),
    "Einsum": Rule(calls(_contract, equation=""), takes(FLOATS)),
}


# Scaled dot-product attention: Brisk's fused pattern (``ATTENTION``), by torch's kernel.


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    zero_masked_rows: int,
) -> Tensor:
    """Scores are never written to memory whole, save where an operand is to be broadcast.

    Rows whose every key is masked with minus infinity are zero, as with ``zero_masked_rows``;
    without it the definition makes them 0/0.
    """
    turned = key.transpose(2, 3)
    if mask is not None and mask.dim() < 4:
        mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    if _fit(query, turned, value, mask):
        return torch.nn.functional.scaled_dot_product_attention(
            query, turned, value, mask, scale=scale
        )
    scores = query @ key * scale
    made = torch.softmax(scores if mask is None else scores + mask, -1)
    return (torch.where(made.isnan(), 0.0, made) if zero_masked_rows else made) @ value


def _fit(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether torch's kernel takes them: batch and heads are equal, no mask widens the scores."""
    if not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return False
    if mask is None:
        return True
    scores = (*query.shape[:3], key.shape[2])
    return all(size in (1, whole) for size, whole in zip(mask.shape, scores, strict=True))


FUSED_ATTENTION = Rule(calls(_attention, scale=1.0, zero_masked_rows=0), anything)
"""Whoever writes the pattern has looked at ranks and dtypes."""
