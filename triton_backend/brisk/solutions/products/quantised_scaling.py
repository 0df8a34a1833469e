"""QuantizeLinear and DequantizeLinear with one scale, or one for each slice of an axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from brisk.solutions.base import Kernel, Problem, Solution
from brisk.solutions.products.quantised_product import BYTES, saturate
from brisk.solutions.rules import Rule, RuleFamily, attribute, bind, rank
from brisk.solutions.values import TORCH_DTYPES


def _slices(problem: Problem) -> tuple[int, ...] | str:
    """The shape that scales take to broadcast over the input; or why there is none."""
    known, scale = rank(problem), problem.operand(1)
    if scale is None or scale.type.rank is None or known is None:
        return "a rank is not known"
    if attribute(problem, "block_size", 0):
        return "scales for blocks"
    if scale.type.rank == 0 or scale.type.shape == (1,):
        return ()
    if scale.type.rank != 1:
        return f"scales of rank {scale.type.rank}"
    axis = int(attribute(problem, "axis", 1))
    axis += known if axis < 0 else 0
    if not 0 <= axis < known:
        return f"no axis {axis} in an input of rank {known}"
    return (-1,) + (1,) * (known - axis - 1)


def _check_quantise(problem: Problem) -> str | None:
    source, scale, point = (problem.operand(position) for position in range(3))
    if source is None or scale is None:
        return "an operand is missing"
    if {source.type.dtype, scale.type.dtype} != {"float32"}:
        return "input or scale is not float32"
    if problem.outputs[0].dtype not in BYTES:
        return f"the result is {problem.outputs[0].dtype}, int8 and uint8 are known"
    if attribute(problem, "precision", 0) not in (0, 1):
        return "computed in another precision than float32"
    if point is not None and point.type.dtype != problem.outputs[0].dtype:
        return "the zero point's dtype is not the result's"
    slices = _slices(problem)
    return slices if isinstance(slices, str) else None


def _load_quantise(problem: Problem) -> Kernel:
    shape = _slices(problem)
    dtype = TORCH_DTYPES[str(problem.outputs[0].dtype)]
    assert not isinstance(shape, str)

    def compute(
        source: torch.Tensor, scale: torch.Tensor, point: torch.Tensor | None = None
    ) -> torch.Tensor:
        scaled = torch.div(source, scale.reshape(shape)).round_()
        if point is not None:
            scaled.add_(point.reshape(shape))
        return saturate(scaled, dtype)

    return bind(problem, compute)


def _check_dequantise(problem: Problem) -> str | None:
    source, scale = problem.operand(0), problem.operand(1)
    if source is None or scale is None:
        return "an operand is missing"
    if scale.type.dtype != "float32" or problem.outputs[0].dtype != "float32":
        return "the scale or the result is not float32"
    if source.type.dtype not in BYTES:
        return f"the input is {source.type.dtype}, int8 and uint8 are known"
    slices = _slices(problem)
    return slices if isinstance(slices, str) else None


def _load_dequantise(problem: Problem) -> Kernel:
    shape = _slices(problem)
    assert not isinstance(shape, str)

    def compute(source: Any, scale: Any, point: Any = None) -> torch.Tensor:
        values: torch.Tensor = source.to(torch.float32)
        if point is not None:
            values.sub_(point.reshape(shape))
        return values.mul_(scale.reshape(shape))

    return bind(problem, compute)


class QuantisedScaling(RuleFamily):
    """To bytes, rounding half to even and saturating, and back."""

    name = "quantised_scaling"
    rules: ClassVar[Mapping[tuple[str, str], Rule]] = {
        ("", "QuantizeLinear"): Rule(_load_quantise, _check_quantise, since=10),
        ("", "DequantizeLinear"): Rule(_load_dequantise, _check_dequantise, since=10),
    }


SOLUTIONS: tuple[Solution, ...] = (QuantisedScaling(),)
