"""Matrix products of any two operands, by torch's general operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from brisk.solutions.base import (
    APPLIES,
    Applicability,
    Kernel,
    LoadContext,
    Problem,
    Solution,
    refused,
)
from brisk.solutions.binding import bound_kernel, constant_operands
from brisk.solutions.rules import FLOATS, attribute


class TorchProduct(Solution):
    """Gemm, and MatMul with numpy's broadcasting."""

    name = "torch_product"

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "Gemm"), ("", "MatMul")})

    def check(self, problem: Problem) -> Applicability:
        dtypes = {operand.type.dtype for operand in problem.operands if operand is not None}
        if len(dtypes) != 1:
            return refused(f"dtypes {sorted(map(str, dtypes))} differ")
        dtype = dtypes.pop()
        exact = ("int32", "int64") if _computes_integers(problem) else ()
        if dtype not in (*sorted(FLOATS), *exact):
            return refused(f"dtype {dtype} is not one of {', '.join((*sorted(FLOATS), *exact))}")
        ranks = [operand.type.rank for operand in problem.operands[:2] if operand is not None]
        if None in ranks or 0 in ranks:
            return refused(f"operands of rank {ranks}")
        return APPLIES

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        compute = _gemm(problem) if problem.operator == "Gemm" else torch.matmul
        count = len(problem.operands)
        return bound_kernel(problem, compute, constant_operands(problem, count))


def _computes_integers(problem: Problem) -> bool:
    """torch multiplies integer matrices on the CPU only; they wrap as ONNX's do."""
    return problem.operator == "MatMul" and problem.device.type == "cpu"


def _gemm(problem: Problem) -> Callable[..., torch.Tensor]:
    left_transposed = bool(attribute(problem, "transA", 0))
    right_transposed = bool(attribute(problem, "transB", 0))
    alpha, beta = attribute(problem, "alpha", 1.0), attribute(problem, "beta", 1.0)

    def compute(
        left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        left = left.t() if left_transposed else left
        right = right.t() if right_transposed else right
        if bias is None:
            result = torch.mm(left, right)
            return result if alpha == 1.0 else result.mul_(alpha)
        return torch.addmm(bias, left, right, beta=beta, alpha=alpha)

    return compute


SOLUTIONS: tuple[Solution, ...] = (TorchProduct(),)
