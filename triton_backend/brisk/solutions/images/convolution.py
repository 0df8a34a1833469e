"""Convolution and its transpose by torch's operators: any device, weights constant or not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.images.window import read_window, refuse_window
from brisk.solutions.rules import Rule, bind, constant_tensor, refuse_mixed_floats

_CALLS = (torch.conv1d, torch.conv2d, torch.conv3d)
_TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
"""By the number of spatial axes, from one on."""


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
    return bind(problem, convolve, bound=_constants(problem))


def convolution(problem: Problem) -> Callable[..., Tensor]:
    """The function of input, weight and, optionally, bias, padding included."""
    window, group = read_window(problem), problem.attribute("group", 1)
    call = _CALLS[window.axes - 1]
    padding = window.before if window.is_symmetric else (0,) * window.axes

    def convolve(source: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not window.is_symmetric:
            source = window.pad(source, 0)
        return call(source, weight, bias, window.strides, padding, window.dilations, group)

    return convolve


def _check_transposed(problem: Problem) -> str | None:
    window = None if _check(problem) else read_window(problem)
    if window is not None and min(*window.before, *window.after) < 0:
        return "negative padding"
    return _check(problem)


def _load_transposed(problem: Problem) -> Kernel:
    """By torch's own padding where both sides are alike, else cut and filled afterwards."""
    window, group = read_window(problem), problem.attribute("group", 1)
    axes, strides, dilations = window.axes, window.strides, window.dilations
    extra = tuple(problem.attribute("output_padding", (0,) * axes))
    wanted = tuple(problem.attribute("output_shape", ()))[-axes:]
    call, nothing = _TRANSPOSED[axes - 1], (0,) * axes
    limits = map(max, strides, dilations)  # torch's, of its output padding
    if not wanted and window.is_symmetric and all(map(operator.lt, extra, limits)):
        return bind(
            problem,
            lambda x, weight, bias=None: call(
                x, weight, bias, strides, window.before, extra, group, dilations
            ),
            bound=_constants(problem),
        )

    def compute(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        result = call(x, weight, None, strides, nothing, nothing, group, dilations)
        beyond = [0] * (2 * axes)  # the last axis first
        for i, full in enumerate(result.shape[2:]):
            before, size = window.before[i], full + extra[i] - window.before[i] - window.after[i]
            if wanted or window.same is not None:
                size = wanted[i] if wanted else x.shape[2 + i] * strides[i]
                total = max(full + extra[i] - size, 0)
                before = total // 2 if window.same == "UPPER" else total - total // 2
            result = result.narrow(2 + i, before, min(size, full - before))
            beyond[2 * (axes - i) - 1] = max(size - full + before, 0)
        if any(beyond):
            result = functional.pad(result, beyond)
        return result if bias is None else result + bias.reshape(-1, *[1] * axes)

    return bind(problem, compute, bound=_constants(problem))


CONVOLUTION: dict[str, Rule] = {
    "Conv": Rule(_load_convolution, _check),
    "ConvTranspose": Rule(_load_transposed, _check_transposed),
}
