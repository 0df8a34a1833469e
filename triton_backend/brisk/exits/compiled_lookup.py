"""A learned cache's look-up as one call of machine code.

A look-up of one row is some forty calls of torch, each of a few microseconds whatever it
computes. Here the predictor becomes steps for the executor of small layers, and the gate and the
selector one function behind it. ``LookUp`` stays the definition, and is what is called where there
is no compiler, until the executor has been compiled, and for networks that have no steps.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_bool, c_float
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from brisk.compiled.library import Library, library
from brisk.compiled.table import Kind
from brisk.compiled.verdict import MOST_GREATEST, MOST_RANK, RANK_STEP, VerdictEntry
from brisk.exits.gate import DistanceGate, as_bytes
from brisk.exits.lookup import FARTHEST, FLOOR, LookUp, Selector, SoftmaxLookUp
from brisk.exits.variants import Shape, weights_bytes
from brisk.exits.variants.base import AsImage
from brisk.native.sketch import RefusedError, Sketch, Step, View
from brisk.solutions.onednn_fusion import NO_ACTIVATION, Activation

MOST_ROWS = 64
MOST_WEIGHTS = 2_000_000
"""Of a predictor that is compiled, which copies them; torch is as fast with more."""

_RELU = Activation("relu")


@dataclass(frozen=True, slots=True, eq=False)
class LookedUp:
    """What a look-up says of each row: its score, and whether it is near the training data.

    Plain numbers: a call of torch between two layers, when its code is in no cache, takes as long
    as a look-up. So the logits, of which a miss needs nothing, become a tensor when asked for.
    """

    scores: Sequence[float]
    near: Sequence[bool]
    classes: int
    found: torch.Tensor | ctypes.Array[c_float]

    @property
    def logits(self) -> torch.Tensor:
        """Float32 [rows, classes]."""
        if isinstance(self.found, torch.Tensor):
            return self.found
        return torch.frombuffer(self.found, dtype=torch.float32).view(-1, self.classes)


ReadyLookUp = Callable[[torch.Tensor], LookedUp]
"""Of hidden outputs, float32 [rows, ...]."""


def ready_look_up(network: LookUp, shape: Shape) -> ReadyLookUp:
    """The fastest way to ask ``network``, whose weights must not change any more."""
    if type(network) in (LookUp, SoftmaxLookUp):
        with contextlib.suppress(RefusedError):
            return CompiledLookUp(network, shape)
    return functools.partial(asked_by_torch, network)


def asked_by_torch(network: LookUp, hidden: torch.Tensor) -> LookedUp:
    """The definition itself, layer by layer."""
    with torch.inference_mode():
        logits, scores, near = network(hidden)
        return LookedUp(scores.tolist(), near.tolist(), logits.shape[1], logits)


def look_up_bytes(network: LookUp, shape: Shape) -> int:
    """Memory of the weights of a look-up, those that its compiled form copies included."""
    own = weights_bytes(network)
    is_compiled = isinstance(ready_look_up(network, shape), CompiledLookUp)
    return own * 2 if is_compiled else own


class CompiledLookUp:
    """Float32 [rows, *shape] to what ``network`` gives, to rounding; NaN scores 0.

    Any thread may call it; calls that overlap in time wait for each other. Raises RefusedError
    where the network has no steps.
    """

    def __init__(self, network: LookUp, shape: Shape) -> None:
        self._network = network
        self._shape = shape
        self._order = torch.channels_last if len(shape) == 3 else torch.contiguous_format
        self._classes = _last(network.predictor).out_features
        self._sketch: Sketch | None = _draw_predictor(network.predictor, shape)
        self._arrays: dict[str, np.ndarray] = {}
        self._verdict = VerdictEntry(**_geometry(shape), classes=self._classes)
        if not isinstance(network, SoftmaxLookUp):
            self._arrays = {
                **_fill_gate(self._verdict, network.gate, shape),
                **_fill_selector(self._verdict, network.selector),
            }
            self._verdict.floor = float(network.floor)
            for name, array in self._arrays.items():
                setattr(self._verdict, name, array.ctypes.data)
        self._address = ctypes.addressof(self._verdict)
        self._library: Library | None = None
        self._steps: int | None = None

    def __call__(self, hidden: torch.Tensor) -> LookedUp:
        rows = hidden.shape[0]
        executor = self._library or self._prepare()
        if executor is None or not 0 < rows <= MOST_ROWS or hidden.shape[1:] != self._shape:
            return asked_by_torch(self._network, hidden)
        if not hidden.is_contiguous(memory_format=self._order):
            hidden = hidden.contiguous(memory_format=self._order)
        logits = (c_float * (rows * self._classes))()
        scores, near = (c_float * rows)(), (c_bool * rows)()
        executor.look_up(self._steps, self._address, rows, hidden.data_ptr(), logits, scores, near)
        return LookedUp(scores[:], near[:], self._classes, logits)

    def _prepare(self) -> Library | None:
        """The executor, with the steps made, once it is there."""
        executor, sketch = library(), self._sketch
        if executor is None or sketch is None:
            return None
        floats = sketch.place(MOST_ROWS)
        self._steps = executor.new_network([step.entry() for step in sketch.steps], floats)
        weakref.finalize(self, executor.delete, self._steps)
        self._sketch, self._library = None, executor
        return executor


def _last(predictor: nn.Module) -> nn.Linear:
    found = predictor[-1] if isinstance(predictor, nn.Sequential) else predictor
    if not isinstance(found, nn.Linear):
        raise RefusedError(f"a predictor that ends with {type(found).__name__}")
    return found


def _as_sizes(shape: Shape) -> tuple[int, ...]:
    """Of a feature map as the executor counts them: channels first."""
    return (shape[1], shape[0], 1) if len(shape) == 2 else shape


def _geometry(shape: Shape) -> dict[str, int]:
    channels, height, width = (*_as_sizes(shape), 1, 1)[:3]
    is_flat = int(len(shape) == 1)
    return {"height": height, "width": width, "channels": channels, "is_flat": is_flat}


def _draw_predictor(predictor: nn.Module, shape: Shape) -> Sketch:
    """The steps from input 0 to output 0, the logits."""
    weights = sum(parameter.numel() for parameter in predictor.parameters())
    if weights > MOST_WEIGHTS:
        raise RefusedError(f"{weights} weights, at most {MOST_WEIGHTS}")
    sketch = Sketch("rows")
    view = sketch.add_input("value", 0, _as_sizes(shape), planar=False)
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
            weights=_array(layer.weight),
            bias=None if layer.bias is None else _array(layer.bias),
        )
    )
    return target


def _draw_product(
    sketch: Sketch, source: View, layer: nn.Linear, activation: Activation, is_rows: bool
) -> View:
    """A product with all of a map is a convolution whose kernel is as large as the map."""
    channels, height, width = (*source.sizes, 1, 1)[:3]
    weights = _array(layer.weight)
    if is_rows:  # in the order of positions, then features
        weights = weights.reshape(-1, height, channels).transpose(0, 2, 1)
    read = sketch.value("value")
    target = sketch.new_view((layer.out_features,))
    sketch.steps.append(
        Step(
            *(Kind.CONVOLUTION, read, target, None, activation),
            kernel=(height, width),
            weights=np.ascontiguousarray(weights.reshape(-1, channels, height, width)),
            bias=_array(layer.bias),
        )
    )
    return target


def _fill_gate(verdict: VerdictEntry, gate: DistanceGate, shape: Shape) -> dict[str, np.ndarray]:
    """The gate's arrays: features in the order of C++, its rank padded with zeros."""
    features, rank = gate.basis.shape
    padded = math.ceil(rank / RANK_STEP) * RANK_STEP
    if padded > MOST_RANK:
        raise RefusedError(f"a gate of {rank} dimensions, at most {MOST_RANK}")
    order = np.arange(features)
    if len(shape) > 1:  # torch counts channels first, then quarters; the root mean squares last
        channels = features // 5
        quarters = order[: 4 * channels].reshape(channels, 4).T.reshape(-1)
        order = np.concatenate([quarters, order[4 * channels :]])
    verdict.features, verdict.rank = features, padded
    verdict.outside, verdict.limit = float(gate.outside), float(gate.limit)
    more = padded - rank
    steps, unit = as_bytes(gate.basis.detach())
    return {
        "mean": np.ascontiguousarray(_array(gate.mean)[order]),
        "scale": np.ascontiguousarray(_array(gate.scale)[order]),
        "unit": np.ascontiguousarray(_array(unit)[order]),
        "basis": np.pad(steps.numpy()[order], ((0, 0), (0, more))),
        "whitening": np.pad(_array(gate.whitening), ((0, more), (0, more))),
        "centres": np.pad(_array(gate.centres), ((0, 0), (0, more))),
    }


def _fill_selector(verdict: VerdictEntry, selector: Selector) -> dict[str, np.ndarray]:
    first, _, last = selector.network
    assert isinstance(first, nn.Linear), "as Selector is made"
    assert isinstance(last, nn.Linear), "as Selector is made"
    if selector.width > MOST_GREATEST:
        raise RefusedError(f"a selector of {selector.width} probabilities")
    verdict.greatest, verdict.units = selector.width, first.out_features
    verdict.last_bias = float(last.bias)
    verdict.least_logarithm, verdict.farthest = FLOOR, FARTHEST
    return {
        "hidden": _array(first.weight),
        "hidden_bias": _array(first.bias),
        "last": np.ascontiguousarray(_array(last.weight)[0]),
    }


def _array(tensor: torch.Tensor) -> np.ndarray:
    made: np.ndarray = np.ascontiguousarray(tensor.detach().float().numpy())
    return made
