"""Products of rows with a constant matrix by the compiled library, epilogue fused.

The product itself takes as long as MKL's on Intel's processors, 0.8 to 0.85 of it on AMD's, and
what follows it takes no passes of its own. With several threads the helpers of the layer before
are still awake, where torch's sleep: 0.75 to 0.8 of MKL's time with two. Of few rows, which only
stream the weights: one took 0.4 to 0.6 of MKL's time on an AMD, with one thread 0.75 to 1; four
0.1 to 0.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from brisk.compiled.compiler import is_intel
from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.compiled_layer import (
    CompiledLayer,
    Fused,
    fuse,
    library_refusal,
    padded_bias,
    panels,
)
from brisk.solutions.epilogue import finish_epilogue
from brisk.solutions.gemm import ConstantMatrix

FEWEST_WEIGHTS = 1 << 14
"""Below, a call's own cost is most of it."""

MOST_ROWS = 1024
"""Of the matrix. Beyond, MKL's blocking is the better one by a tenth, on Intel's processors."""


class BlockedMatrix(Solution):
    """A variable left operand times a constant matrix, plus a constant row."""

    name = "blocked_matrix"
    pattern = Pattern.GEMM

    def __init__(self) -> None:
        self._plain = ConstantMatrix()

    def operators(self) -> frozenset[tuple[str, str]]:
        return self._plain.operators()

    def check(self, problem: Problem) -> Verdict:
        verdict = self._plain.check(problem)
        if not verdict.ok:
            return verdict
        matrix = problem.operand(1)
        assert matrix is not None
        assert matrix.constant is not None
        if matrix.constant.size < FEWEST_WEIGHTS:
            return refused(f"{matrix.constant.size} weights, at least {FEWEST_WEIGHTS}")
        rows, _ = _sizes(problem)
        if rows > MOST_ROWS and is_intel():
            return refused(f"a matrix of {rows} rows, at most {MOST_ROWS}")
        reason = library_refusal(problem)
        return verdict if reason is None else refused(reason)

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """``panels`` and ``bias`` as the library wants them, plain float32 tensors."""
        weights = self._plain.transform(problem)
        bias = padded_bias(weights.get("bias"), weights["matrix"].shape[1])
        return {"panels": panels(weights["matrix"]), "bias": bias}

    def transformed_operands(self, problem: Problem) -> frozenset[int]:
        return frozenset({1, 2})

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        source = problem.operand(0)
        assert source is not None
        rows, columns = _sizes(problem)
        fused = fuse(problem, (*(source.type.shape or ())[:-1], columns))
        layer = CompiledLayer(weights, rows, columns, fused)
        plain = CompiledLayer(weights, rows, columns, Fused()) if fused.adds else None
        finish, finish_all = finish_epilogue(problem, fused.steps), finish_epilogue(problem)

        def kernel(source: torch.Tensor, *operands: torch.Tensor) -> Sequence[torch.Tensor]:
            *others, inner = source.shape
            if inner != rows:
                raise ValueError(
                    f"a matrix of {rows} rows cannot take an input of shape {tuple(source.shape)}"
                )
            if not source.numel():
                result = source.new_empty((*others, columns))
                return (result if finish_all is None else finish_all(result, operands),)
            if plain is None:
                result = layer.compute_rows(source)
            elif operands[0].shape == (*others, columns):
                result, operands = layer.compute_rows(source, operands[0]), operands[1:]
            else:
                result = plain.compute_rows(source)
                assert finish_all is not None
                return (finish_all(result, operands),)
            return (result if finish is None else finish(result, operands),)

        return kernel


def _sizes(problem: Problem) -> tuple[int, int]:
    """Rows and columns of the constant matrix as it multiplies."""
    matrix = problem.operand(1)
    assert matrix is not None
    assert matrix.constant is not None
    rows, columns = matrix.constant.shape
    return (columns, rows) if problem.attributes.get("transB", 0) else (rows, columns)


SOLUTIONS: tuple[Solution, ...] = (BlockedMatrix(),)
