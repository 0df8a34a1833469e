"""LayerNormalization by the compiled library, whose helper threads stay awake behind a layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.binding import bound_kernel, constant_operands
from brisk.solutions.compiled_layer import CompiledCall, library_refusal
from brisk.solutions.normalisation import Normalisation
from brisk.solutions.rules import attribute


class RowNormalisation(Solution):
    """Float32 on the CPU; what ``Normalisation`` knows otherwise."""

    name = "row_normalisation"
    pattern = Pattern.NORMALISATION

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "LayerNormalization")})

    def check(self, problem: Problem) -> Verdict:
        verdict = Normalisation().check(problem)
        reason = library_refusal(problem) if verdict.ok else None
        return verdict if reason is None else refused(reason)

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        scale = problem.operand(1)
        assert scale is not None
        call = _Call(tuple(scale.type.shape or ()), attribute(problem, "epsilon", 1e-5))  # type: ignore[arg-type]
        return bound_kernel(problem, call, constant_operands(problem, len(problem.operands)))


class _Call(CompiledCall):
    """``shape``: the normalised dimensions, the last ones of the source."""

    __slots__ = ("_epsilon", "_shape")

    def __init__(self, shape: tuple[int, ...], epsilon: float) -> None:
        super().__init__()
        self._shape, self._epsilon = shape, epsilon

    def __call__(
        self, source: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        shape = self._shape
        if source.shape[source.dim() - len(shape) :] != shape:
            raise ValueError(f"an input of shape {tuple(source.shape)} does not end in {shape}")
        source, scale = source.contiguous(), scale.contiguous()
        bias = None if bias is None else bias.contiguous()
        target, width = torch.empty_like(source), scale.numel()
        if source.numel():
            self.library.normalise_rows(
                self.threads(), source.numel() // width, width, self._epsilon, scale.data_ptr(),
                None if bias is None else bias.data_ptr(), source.data_ptr(), target.data_ptr(),
            )  # fmt: skip
        return target


SOLUTIONS: tuple[Solution, ...] = (RowNormalisation(),)
