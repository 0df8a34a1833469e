"""Convolution and its transpose by torch's operators: any device, weights constant or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.images.window import Window, read_window, refuse_window
from brisk.solutions.rules import Rule, bind_constants, constant_tensor, refuse_mixed_floats

CONVOLUTIONS: Mapping[int, Callable[..., torch.Tensor]] = {
    1: torch.conv1d,
    2: torch.conv2d,
    3: torch.conv3d,
}
"""By the number of spatial axes."""

_TRANSPOSED: Mapping[int, Callable[..., torch.Tensor]] = {
    1: torch.conv_transpose1d,
    2: torch.conv_transpose2d,
    3: torch.conv_transpose3d,
}


def refuse_axes(problem: Problem) -> str | None:
    """Why torch has no convolution over the input's spatial axes."""
    axes = (problem.rank() or 0) - 2
    reason = refuse_window(problem)
    if reason is None and axes > 3:
        return f"{axes} spatial dimensions, at most 3 are known"
    return reason


def _check(problem: Problem) -> str | None:
    return refuse_mixed_floats(problem) or refuse_axes(problem)


def _constants(problem: Problem) -> list[Any]:
    """Weight and bias that are constant. On a GPU, weights of planes are channels-last."""
    tensors = [constant_tensor(problem, position) for position in range(len(problem.operands))]
    if problem.device.type == "cuda":
        return [
            tensor.contiguous(memory_format=torch.channels_last)
            if tensor is not None and tensor.dim() == 4
            else tensor
            for tensor in tensors
        ]
    return tensors


def _load_convolution(problem: Problem) -> Kernel:
    convolve = convolution(problem)
    return bind_constants(problem, convolve, _constants(problem))


def convolution(problem: Problem) -> Callable[..., torch.Tensor]:
    """The function of input, weight and, optionally, bias, padding included."""
    window, group = read_window(problem), problem.attribute("group", 1)
    call = CONVOLUTIONS[window.axes]
    padding = window.before if window.is_symmetric else (0,) * window.axes

    def convolve(
        source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        if not window.is_symmetric:
            source = window.pad(source, 0)
        return call(source, weight, bias, window.strides, padding, window.dilations, group)

    return convolve


def _check_transposed(problem: Problem) -> str | None:
    reason = _check(problem)
    if reason is not None:
        return reason
    window = read_window(problem)
    if min(*window.before, *window.after) < 0:
        return "negative padding"
    extra, wanted = _output_padding(problem, window), _wanted_sizes(problem, window)
    if not _are_possible(extra, window):
        return "output padding not smaller than stride or dilation"
    sizes: Any = problem.operands[0].type.shape[2:] if wanted else ()  # type: ignore[union-attr,index]
    if not all(isinstance(size, int) for size in sizes):
        return "output_shape for an input whose sizes are not known"
    if wanted and not _are_possible(_extra_sizes(sizes, wanted, window, extra), window):
        return "output_shape beyond what output padding can reach"
    return None


def _load_transposed(problem: Problem) -> Kernel:
    """Asymmetric paddings are cut off afterwards."""
    window, group = read_window(problem), problem.attribute("group", 1)
    call = _TRANSPOSED[window.axes]
    extra, wanted = _output_padding(problem, window), _wanted_sizes(problem, window)
    if wanted:
        sizes: Any = problem.operands[0].type.shape[2:]  # type: ignore[union-attr,index]  # checked
        extra = _extra_sizes(sizes, wanted, window, extra)
    direct = not wanted and window.is_symmetric
    padding = window.before if direct else (0,) * window.axes

    def compute(
        source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        result = call(
            source, weight, bias, window.strides, padding, extra, group, window.dilations
        )
        return result if direct else _cut(result, source, window, wanted)

    return bind_constants(problem, compute, _constants(problem))


def _output_padding(problem: Problem, window: Window) -> tuple[int, ...]:
    return tuple(problem.attribute("output_padding", (0,) * window.axes))


def _wanted_sizes(problem: Problem, window: Window) -> tuple[int, ...]:
    """The spatial sizes of attribute ``output_shape``; empty where it is absent."""
    return tuple(problem.attribute("output_shape", ()))[-window.axes :]


def _are_possible(extra: Sequence[int], window: Window) -> bool:
    """Whether torch takes ``extra`` as output padding."""
    limits = zip(extra, window.strides, window.dilations, strict=True)
    return all(amount < max(stride, dilation) for amount, stride, dilation in limits)


def _extra_sizes(
    sizes: Sequence[int], wanted: Sequence[int], window: Window, extra: Sequence[int]
) -> tuple[int, ...]:
    """The output padding, at least ``extra``, with which the result reaches ``wanted``."""
    return tuple(
        max(extra[i], target - window.strides[i] * (size - 1) - window.span(i))
        for i, (size, target) in enumerate(zip(sizes, wanted, strict=True))
    )


def _cut(
    result: torch.Tensor, source: torch.Tensor, window: Window, wanted: Sequence[int]
) -> torch.Tensor:
    """``result`` of the unpadded operator without the paddings.

    ``wanted``: the spatial sizes asked for, or empty.
    """
    for i, full in enumerate(result.shape[2:]):
        before = window.before[i]
        if wanted or window.same is not None:
            size = wanted[i] if wanted else source.shape[2 + i] * window.strides[i]
            total = full - size
            before = total // 2 if window.same == "UPPER" else total - total // 2
        else:
            size = full - before - window.after[i]
        result = result.narrow(2 + i, before, size)
    return result


CONVOLUTION: dict[str, Rule] = {"Conv": Rule(_load_convolution, _check)}

TRANSPOSED_CONVOLUTION: dict[str, Rule] = {
    "ConvTranspose": Rule(_load_transposed, _check_transposed)
}
