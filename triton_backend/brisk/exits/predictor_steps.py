"""A predictor as steps for the executor of small layers."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from brisk.compiled.table import Kind
from brisk.exits.variants import Shape
from brisk.exits.variants.base import AsImage
from brisk.native.sketch import RefusedError, Sketch, Step, View
from brisk.solutions.onednn_fusion import NO_ACTIVATION, Activation

MOST_WEIGHTS = 2_000_000
"""Of a predictor that is compiled, which copies them; torch is as fast with more."""

_RELU = Activation("relu")


def draw_predictor(predictor: nn.Module, shape: Shape) -> Sketch:
    """The steps from input 0 to output 0, the logits."""
    weights = sum(parameter.numel() for parameter in predictor.parameters())
    if weights > MOST_WEIGHTS:
        raise RefusedError(f"{weights} weights, at most {MOST_WEIGHTS}")
    sketch = Sketch("rows")
    view = sketch.add_input("value", 0, as_sizes(shape), planar=False)
    layers = list(predictor) if isinstance(predictor, nn.Sequential) else [predictor]
    is_rows = len(shape) == 2  # [positions, features], which FC(h) reads in that order
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        activation = _RELU if isinstance(following, nn.ReLU) else NO_ACTIVATION
        match layer:
            case AsImage():
                is_rows = False
            case nn.ReLU() | nn.Flatten():
                continue
            case nn.AdaptiveAvgPool2d():
                view = _draw_pool(sketch, view, layer)
            case nn.Conv2d():
                view = _draw_convolution(sketch, view, layer, activation)
            case nn.Linear():
                view = _draw_product(sketch, view, layer, activation, is_rows)
                is_rows = False
            case _:
                raise RefusedError(f"a predictor with {type(layer).__name__}")
        sketch.values["value"] = view
    sketch.make_output("value", 0)
    return sketch


def _draw_pool(sketch: Sketch, source: View, layer: nn.AdaptiveAvgPool2d) -> View:
    height, width = layer.output_size  # type: ignore[misc]  # a pair, as variants make it
    target = sketch.new_view((source.sizes[0], int(height or 1), int(width or 1)))
    sketch.steps.append(Step(Kind.ADAPTIVE_POOL, source, target))
    return target


def _draw_convolution(
    sketch: Sketch, source: View, layer: nn.Conv2d, activation: Activation
) -> View:
    pad, stride, kernel = layer.padding[0], layer.stride[0], layer.kernel_size[0]
    if isinstance(pad, str) or layer.groups != 1 or layer.dilation != (1, 1):
        raise RefusedError("a convolution of another kind")
    sides = [(side + 2 * pad - kernel) // stride + 1 for side in source.sizes[1:]]
    beyond = [
        max((count - 1) * stride + kernel - pad - side, 0)
        for count, side in zip(sides, source.sizes[1:], strict=True)
    ]
    read = sketch.value("value", (pad, pad, beyond[0], beyond[1]))
    target = sketch.new_view((layer.out_channels, *sides))
    sketch.steps.append(
        Step(
            *(Kind.CONVOLUTION, read, target, None, activation),
            kernel=(kernel, kernel),
            strides=(stride, stride),
            before=(pad, pad),
            weights=as_array(layer.weight),
            bias=None if layer.bias is None else as_array(layer.bias),
        )
    )
    return target


def _draw_product(
    sketch: Sketch, source: View, layer: nn.Linear, activation: Activation, is_rows: bool
) -> View:
    """A product with all of a map is a convolution whose kernel is as large as the map."""
    channels, height, width = (*source.sizes, 1, 1)[:3]
    weights = as_array(layer.weight)
    if is_rows:  # in the order of positions, then features
        weights = weights.reshape(-1, height, channels).transpose(0, 2, 1)
    read = sketch.value("value")
    target = sketch.new_view((layer.out_features,))
    sketch.steps.append(
        Step(
            *(Kind.CONVOLUTION, read, target, None, activation),
            kernel=(height, width),
            weights=np.ascontiguousarray(weights.reshape(-1, channels, height, width)),
            bias=as_array(layer.bias),
        )
    )
    return target


def as_sizes(shape: Shape) -> tuple[int, ...]:
    """Of a feature map as the executor counts them: channels first."""
    return (shape[1], shape[0], 1) if len(shape) == 2 else shape


def as_array(tensor: torch.Tensor) -> np.ndarray:
    made: np.ndarray = np.ascontiguousarray(tensor.detach().float().numpy())
    return made
