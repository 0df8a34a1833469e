"""A trained look-up as an ONNX model, written node by node and held against torch's answers.

Its weights have the names of the network's own (``state_dict``), so that training goes on from
the file alone (``brisk.exits.heads.lookup.network_of``).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import onnx
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import nn

from brisk.errors import InternalError
from brisk.exits.heads.distance_gate import summary
from brisk.exits.heads.lookup import FARTHEST, FLOOR, LookUp, SoftmaxLookUp
from brisk.exits.heads.lookup_model import (
    INPUT,
    IR_VERSION,
    LOGITS,
    NEAR,
    OPSET,
    SCORE,
    LookUpModel,
    Shape,
)
from brisk.exits.heads.predictors import AsImage

CHECKED_ROWS = 8
CLOSE_LOGITS, CLOSE_SCORES = 1e-5, 1e-4
"""Of the greatest logit; of a score. Sums in another order differ by less."""

SMALLEST_DISTANCE = 1e-6


def export_look_up(
    network: LookUp, shape: Shape, variant: str = "", *, is_checked: bool = True
) -> bytes:
    """``network`` for hidden outputs of ``shape`` as an ONNX model.

    Raises InternalError where the model answers otherwise than the network does, if that
    ``is_checked``.
    """
    if is_checked:
        _compare(network, shape)
    return _written(network, shape, variant)


def _written(network: LookUp, shape: Shape, variant: str) -> bytes:
    writer = _Writer({name: value.numpy() for name, value in network.state_dict().items()})
    logits = writer.predictor(network.predictor, shape)
    writer.rename(logits, LOGITS)
    if isinstance(network, SoftmaxLookUp):
        writer.softmax_decision()
    else:
        writer.decision(network, shape)
    return writer.model(shape, network, variant)


class _Writer:
    """``weights``: of the network by name; those that nodes read become initialisers."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self._weights = weights
        self._nodes: list[NodeProto] = []
        self._initialisers: dict[str, TensorProto] = {}

    def node(
        self, operator: str, inputs: Sequence[str], output: str = "", **attributes: object
    ) -> str:
        """Append a node; the name of its output."""
        name = output or f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], name, **attributes))
        return name

    def rename(self, value: str, name: str) -> None:
        """Let ``value``, the output of the last node, be called ``name``."""
        assert self._nodes[-1].output[0] == value
        self._nodes[-1].output[0] = name

    def weight(self, name: str) -> str:
        return self._put(name, self._weights[name])

    def constant(self, name: str, value: float | Sequence[int] | np.ndarray) -> str:
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        return self._put(f"constant.{name}", array)

    def _put(self, name: str, array: np.ndarray) -> str:
        tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        self._initialisers[name] = tensor
        return name

    def predictor(self, predictor: nn.Module, shape: Shape) -> str:
        """The nodes from the hidden output to the logits."""
        value, sizes = INPUT, tuple(shape)
        is_chain = isinstance(predictor, nn.Sequential)
        layers = dict(predictor.named_children()) if is_chain else {"": predictor}
        for place, layer in layers.items():
            prefix = f"predictor.{place}." if place else "predictor."
            match layer:
                case AsImage():
                    value, sizes = self.image(value, sizes)
                case nn.AdaptiveAvgPool2d():
                    wanted = tuple(int(size) for size in layer.output_size)  # type: ignore[union-attr,arg-type]
                    value = self.pool(value, (sizes[1], sizes[2]), wanted, f"{prefix}pool")
                    sizes = (sizes[0], *wanted)
                case nn.Conv2d():
                    value, sizes = self._convolution(value, sizes, layer, prefix)
                case nn.ReLU():
                    value = self.node("Relu", [value])
                case nn.Flatten():
                    value = self.node("Flatten", [value], axis=1)
                case nn.Linear():
                    value = self.linear(value, prefix)
                case _:
                    raise InternalError(
                        f"a predictor with {type(layer).__name__} has no ONNX form"
                    )
        return value

    def linear(self, value: str, prefix: str) -> str:
        reads = [value, self.weight(f"{prefix}weight"), self.weight(f"{prefix}bias")]
        return self.node("Gemm", reads, transB=1)

    def _convolution(
        self, value: str, sizes: Shape, layer: nn.Conv2d, prefix: str
    ) -> tuple[str, Shape]:
        if isinstance(layer.padding, str) or layer.groups != 1 or layer.dilation != (1, 1):
            raise InternalError("a convolution of another kind has no ONNX form")
        reads = [value, self.weight(f"{prefix}weight"), self.weight(f"{prefix}bias")]
        made = self.node(
            "Conv",
            reads,
            kernel_shape=list(layer.kernel_size),
            strides=list(layer.stride),
            pads=[*layer.padding, *layer.padding],
        )
        sides = [
            (side + 2 * pad - kernel) // stride + 1
            for side, pad, kernel, stride in zip(
                sizes[1:], layer.padding, layer.kernel_size, layer.stride, strict=True
            )
        ]
        return made, (layer.out_channels, *sides)

    def image(self, value: str, sizes: Shape) -> tuple[str, Shape]:
        """[rows, positions, features] as [rows, features, positions, 1]."""
        if len(sizes) != 2:
            return value, sizes
        turned = self.node("Transpose", [value], perm=[0, 2, 1])
        axes = self.constant("last_axis", [3])
        return self.node("Unsqueeze", [turned, axes]), (sizes[1], sizes[0], 1)

    def pool(self, value: str, sides: tuple[int, int], wanted: tuple[int, ...], name: str) -> str:
        """Averages as torch's adaptive ones: by windows where they tile, else by products."""
        if all(side % size == 0 for side, size in zip(sides, wanted, strict=True)):
            window = [side // size for side, size in zip(sides, wanted, strict=True)]
            return self.node("AveragePool", [value], kernel_shape=window, strides=window)
        down, across = (_averaging(*pair) for pair in zip(sides, wanted, strict=True))
        narrow = self.node("MatMul", [value, self.constant(f"{name}.across", across.T)])
        return self.node("MatMul", [self.constant(f"{name}.down", down), narrow])

    def softmax_decision(self) -> None:
        """As ``SoftmaxLookUp.decide``."""
        shares = self.node("Softmax", [LOGITS], axis=1)
        self.node("ReduceMax", [shares], SCORE, axes=[1], keepdims=0)
        self.node("GreaterOrEqual", [SCORE, self.constant("nothing", 0.0)], NEAR)

    def decision(self, network: LookUp, shape: Shape) -> None:
        """As ``LookUp.decide``: the distance gate, then the selector. No number is not near."""
        features = self._summary(shape)
        standard = self.node(
            "Mul",
            [
                self.node("Sub", [features, self.weight("gate.mean")]),
                self.weight("gate.scale"),
            ],
        )
        inside = self.node("MatMul", [standard, self.weight("gate.basis")])
        whole = self.node("ReduceSumSquare", [standard], axes=[1], keepdims=0)
        within = self.node("ReduceSumSquare", [inside], axes=[1], keepdims=0)
        rest = self.node("Relu", [self.node("Sub", [whole, within])])
        outside = self.node("Mul", [rest, self.weight("gate.outside")])
        place = self.node("MatMul", [inside, self.weight("gate.whitening")])
        classes = self.node("ArgMax", [LOGITS], axis=1, keepdims=0)
        centre = self.node("Gather", [self.weight("gate.centres"), classes], axis=0)
        apart = self.node("Sub", [place, centre])
        squares = self.node("ReduceSumSquare", [apart], axes=[1], keepdims=0)
        distance = self.node("Add", [squares, outside])
        ratio = self.node("Div", [distance, self.weight("gate.limit")])
        least = self.constant("smallest_distance", SMALLEST_DISTANCE)
        relative = self.node("Log", [self.node("Max", [ratio, least])])
        total = self.node("ReduceSum", [LOGITS, self.constant("classes_axis", [1])], keepdims=0)
        every = self.node("Add", [self.node("Add", [whole, ratio]), total])
        is_number = self.node("Not", [self.node("IsNaN", [every])])
        is_close = self.node("LessOrEqual", [relative, self.constant("nothing", 0.0)])
        self.node("And", [is_close, is_number], NEAR)
        score = self.node("Sigmoid", [self._selector(network, relative)])
        reaches = self.node("GreaterOrEqual", [score, self.weight("floor")])
        counts = self.node("And", [NEAR, reaches])
        self.node("Where", [counts, score, self.constant("nothing", 0.0)], SCORE)

    def _summary(self, shape: Shape) -> str:
        """As ``brisk.exits.heads.distance_gate.summary``."""
        if len(shape) == 1:
            return INPUT
        image, (_, *sides) = self.image(INPUT, shape)
        quarters = self.pool(image, (sides[0], sides[1]), (2, 2), "quarters")
        flat = self.node("Flatten", [quarters], axis=1)
        squares = self.node("Mul", [image, image])
        mean = self.node("ReduceMean", [squares], axes=[2, 3], keepdims=0)
        return self.node("Concat", [flat, self.node("Sqrt", [mean])], axis=1)

    def _selector(self, network: LookUp, relative: str) -> str:
        """The logit of a hit, [rows]."""
        logs = self.node("LogSoftmax", [LOGITS], axis=1)
        clipped = self.node("Clip", [logs, self.constant("least_logarithm", FLOOR)])
        width = self.constant("width", [network.selector.width])
        greatest, order = "greatest", "greatest_classes"
        self._nodes.append(
            helper.make_node("TopK", [clipped, width], [greatest, order], greatest, axis=1)
        )
        limits = [self.constant("nearest", -FARTHEST), self.constant("farthest", FARTHEST)]
        bounded = self.node("Clip", [relative, *limits])
        column = self.constant("column", [1])
        apart = self.node("Unsqueeze", [bounded, column])
        seen = self.node("Concat", [greatest, apart], axis=1)
        inner = self.node("Relu", [self.linear(seen, "selector.network.0.")])
        hit = self.linear(inner, "selector.network.2.")
        return self.node("Squeeze", [hit, column])

    def model(self, shape: Shape, network: LookUp, variant: str) -> bytes:
        classes = network.gate.centres.shape[0]
        graph = helper.make_graph(
            self._nodes,
            f"look-up {variant}".strip(),
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["rows", *shape])],
            [
                helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["rows", classes]),
                helper.make_tensor_value_info(SCORE, TensorProto.FLOAT, ["rows"]),
                helper.make_tensor_value_info(NEAR, TensorProto.BOOL, ["rows"]),
            ],
            list(self._initialisers.values()),
        )
        made = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="brisk",
        )
        onnx.checker.check_model(made)
        data: bytes = made.SerializeToString()
        return data


def _averaging(side: int, size: int) -> np.ndarray:
    """Float32 [size, side]: torch's adaptive average along one axis as a product."""
    made = np.zeros((size, side), np.float32)
    for place in range(size):
        start, stop = place * side // size, -(-(place + 1) * side // size)
        made[place, start:stop] = 1 / (stop - start)
    return made


def _compare(network: LookUp, shape: Shape) -> None:
    """On random rows, with a gate that lets all pass and no floor, which would hide the rest."""
    open_ = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(CHECKED_ROWS, *shape, generator=generator).relu_()
    with torch.no_grad():
        if not isinstance(open_, SoftmaxLookUp):
            logits = open_.predictor(hidden)
            distances = open_.gate.distance(summary(hidden), logits.argmax(1))
            open_.gate.limit.copy_(distances.double().mean().clamp_min(1e-3) * 2)
            open_.floor.zero_()
        wanted, scores, near = (each.numpy() for each in open_(hidden))
    classes = wanted.shape[1]
    found = LookUpModel(_written(open_, shape, ""), shape, classes)(hidden.numpy())
    scale = max(float(np.abs(wanted).max()), 1.0)
    apart = float(np.abs(found.logits - wanted).max()) / scale
    steady = found.near == near
    by = float(np.abs(found.scores - scores)[steady].max(initial=0.0))
    if not apart <= CLOSE_LOGITS or not by <= CLOSE_SCORES or steady.sum() < len(near) - 1:
        raise InternalError(
            f"a look-up's ONNX form differs from its network: logits by {apart:.1e} of the "
            f"greatest, scores by {by:.1e}, {len(near) - int(steady.sum())} of {len(near)} gated "
            "otherwise"
        )
