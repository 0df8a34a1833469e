"""Calls of oneDNN's fused convolution, as functions that take only tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

from brisk.solutions.base import Kernel
from brisk.solutions.convolution_geometry import Geometry
from brisk.solutions.epilogue import Finish
from brisk.solutions.onednn_fusion import Fusion

Compute: TypeAlias = Callable[..., torch.Tensor]

_DTYPES = ("float32", "bfloat16", "float16")


def onednn_refusal(dtype: str | None, device: torch.device) -> str | None:
    """Why oneDNN's fused operators cannot compute with ``dtype`` here; None where they can."""
    if device.type != "cpu":
        return f"oneDNN computes on the CPU, not on {device}"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch has no oneDNN"
    if dtype not in _DTYPES:
        return f"dtype {dtype} is not one of {', '.join(_DTYPES)}"
    if dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "this CPU has no bfloat16 instructions"
    if dtype == "float16" and not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        return "this CPU has no float16 instructions"
    return None


def operator_padding(geometry: Geometry) -> tuple[int, ...]:
    """What the operator pads itself; zero where the input is padded ahead of it."""
    return geometry.begin if geometry.is_symmetric else (0,) * len(geometry.begin)


def lifted(values: tuple[int, ...], filler: int) -> tuple[int, ...]:
    """One-dimensional arguments as two-dimensional ones."""
    return (filler, *values) if len(values) == 1 else values


def convolution_call(
    geometry: Geometry,
    weights: Mapping[str, torch.Tensor],
    fusion: Fusion,
    constant: torch.Tensor | None = None,
) -> Compute:
    """Takes the input and, where ``fusion`` has a second operand not given here, that one."""
    weight, bias = weights["weight"], weights.get("bias")
    padding = lifted(operator_padding(geometry), 0)
    strides, dilations = lifted(geometry.strides, 1), lifted(geometry.dilations, 1)
    group = geometry.group
    activation = fusion.activation
    attribute, algorithm = activation.attribute, activation.algorithm
    scalars = list(activation.scalars)
    if fusion.binary is None:
        unary_call = torch.ops.mkldnn._convolution_pointwise.default

        def compute(source: torch.Tensor) -> torch.Tensor:
            return unary_call(
                source, weight, bias, padding, strides, dilations, group,
                attribute, scalars, algorithm,
            )  # fmt: skip

        return compute
    call = torch.ops.mkldnn._convolution_pointwise.binary
    binary, unary = fusion.binary, None if attribute == "none" else attribute

    def compute_binary(source: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
        return call(
            source, operand, weight, bias, padding, strides, dilations, group,
            binary, 1.0, unary, scalars, algorithm,
        )  # fmt: skip

    if constant is None:
        return compute_binary
    return lambda source: compute_binary(source, constant)


def prepared(compute: Compute, geometry: Geometry) -> Compute:
    """``compute`` behind the padding and the lifting that the geometry needs."""
    if not geometry.is_symmetric:
        compute = _padded(compute, geometry)
    return _lifting(compute) if len(geometry.kernel) == 1 else compute


def finished(compute: Compute, finish: Finish | None, taken: int) -> Kernel:
    """A kernel of ``compute``, which takes the first ``taken`` operands, and the steps behind."""
    if finish is None:
        return lambda *operands: (compute(*operands),)
    return lambda *operands: (finish(compute(*operands[:taken]), operands[taken:]),)


def pad_amounts(begin: tuple[int, ...], end: tuple[int, ...]) -> list[int]:
    """Zeros before and after each dimension as ``torch.constant_pad_nd`` wants them."""
    pairs = reversed(list(zip(begin, end, strict=True)))
    return [amount for pair in pairs for amount in pair]


def _padded(compute: Compute, geometry: Geometry) -> Compute:
    amounts = pad_amounts(lifted(geometry.begin, 0), lifted(geometry.end, 0))

    def padding_first(source: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
        return compute(torch.constant_pad_nd(source, amounts), *operands)

    return padding_first


def _lifting(compute: Compute) -> Compute:
    def lifting(*operands: torch.Tensor) -> torch.Tensor:
        return compute(*[operand.unsqueeze(-2) for operand in operands]).squeeze(-2)

    return lifting
