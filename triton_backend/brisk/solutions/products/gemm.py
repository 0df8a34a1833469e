"""Matrix products of any two operands and contractions, by torch's general operators."""

from __future__ import annotations

import torch

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import FLOATS, Rule, bind, plain, takes


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


def _load_gemm(problem: Problem) -> Kernel:
    left_transposed = problem.attribute("transA", 0)
    right_transposed = problem.attribute("transB", 0)
    alpha, beta = problem.attribute("alpha", 1.0), problem.attribute("beta", 1.0)

    def compute(
        left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        left = left.t() if left_transposed else left
        right = right.t() if right_transposed else right
        if bias is None:
            result = torch.mm(left, right)
            return result if alpha == 1.0 else result.mul_(alpha)
        return torch.addmm(bias, left, right, beta=beta, alpha=alpha)

    return bind(problem, compute)


def _load_einsum(problem: Problem) -> Kernel:
    equation = problem.attribute("equation", "")
    return bind(problem, lambda *operands: torch.einsum(equation, *operands))


PRODUCT: dict[str, Rule] = {
    "Gemm": Rule(_load_gemm, _check_product),
    "MatMul": Rule(plain(torch.matmul), _check_product),
}

CONTRACTION: dict[str, Rule] = {"Einsum": Rule(_load_einsum, takes(FLOATS), since=12)}
