"""The export of a trained head as an ONNX model, node by node, compared with torch's answers.

The weights have the names of the network's own (``state_dict``), so that training goes on from
the file alone (``network_of``).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import torch
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper
from torch import nn

from brisk.errors import InternalError
from brisk.exits.cascade import Exit
from brisk.exits.files.container import DamagedFileError
from brisk.exits.heads.exit_head import (
    FARTHEST,
    FLOOR,
    ExitHead,
    GatedHead,
    SelectedHead,
    empty_head,
    load_weights,
    whole_model,
)
from brisk.exits.heads.exit_model import (
    FLOOR_OF_WHOLE,
    INPUT,
    IR_VERSION,
    LOGITS,
    NEAR,
    OPSET,
    SCORE,
    AnswerForm,
    ExitModel,
    Judge,
    Shape,
    parse,
)
from brisk.exits.heads.predictors import AsImage

CHECKED_ROWS = 8
CLOSE_LOGITS, CLOSE_SCORES = 1e-5, 1e-4
"""Tolerances: relative to the greatest logit, and of a score. Sums in another order differ by
less."""

SMALLEST_DISTANCE = 1e-6


def export_head(
    network: ExitHead, shape: Shape, variant: str = "", *, is_checked: bool = True
) -> bytes:
    """Return ``network`` for hidden outputs of ``shape`` as an ONNX model.

    Raises InternalError if the model answers otherwise than the network does, unless that is not
    ``is_checked``.
    """
    if is_checked:
        _compare(network, shape)
    return _written(network, shape, variant)


def _written(network: ExitHead, shape: Shape, variant: str) -> bytes:
    writer = _Writer({name: value.numpy() for name, value in network.state_dict().items()})
    writer.predictor(network.predictor, shape)
    if isinstance(network, GatedHead):
        is_selected = isinstance(network, SelectedHead)
        writer.add(
            GATE.replace("SUMMARY", writer.summary(shape))
            + (SELECTOR if is_selected else MARGIN)
            + COUNTED,
            nothing=0.0,
            column=[1],
            smallest_distance=SMALLEST_DISTANCE,
            least_logarithm=FLOOR,
            nearest=-FARTHEST,
            farthest=FARTHEST,
            width=[network.selector.width if isinstance(network, SelectedHead) else 0],
            two=[2],
        )
    else:
        inner = list(range(1, len(shape) + 1))
        sure = GREATEST_SHARE if network.judge is Judge.SOFTMAX else MARGIN
        writer.add(sure + NUMBERS + COUNTED, nothing=0.0, column=[1], two=[2], inner=inner)
    graph = helper.make_graph(
        writer.nodes,
        f"exit {variant}".strip(),
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["rows", *shape])],
        [
            helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["rows", writer.classes]),
            helper.make_tensor_value_info(SCORE, TensorProto.FLOAT, ["rows"]),
            helper.make_tensor_value_info(NEAR, TensorProto.BOOL, ["rows"]),
        ],
        list(writer.initialisers.values()),
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="brisk",
    )
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


GATE = """
    centred = Sub (SUMMARY, gate_mean)
    standard = Mul (centred, gate_scale)
    inside = MatMul (standard, gate_basis)
    whole = ReduceSumSquare <axes = [1], keepdims = 0> (standard)
    within = ReduceSumSquare <axes = [1], keepdims = 0> (inside)
    beyond = Sub (whole, within)
    rest = Relu (beyond)
    outside = Mul (rest, gate_outside)
    place = MatMul (inside, gate_whitening)
    classes = ArgMax <axis = 1, keepdims = 0> (logits)
    centre = Gather <axis = 0> (gate_centres, classes)
    apart = Sub (place, centre)
    squares = ReduceSumSquare <axes = [1], keepdims = 0> (apart)
    distance = Add (squares, outside)
    ratio = Div (distance, gate_limit)
    positive = Max (ratio, smallest_distance)
    relative = Log (positive)
    is_close = LessOrEqual (relative, nothing)
    total = ReduceSum <keepdims = 0> (logits, column)
    some = Add (whole, ratio)
    every = Add (some, total)
    is_none = IsNaN (every)
    is_number = Not (is_none)
    near = And (is_close, is_number)
"""
"""The nodes from the hidden output's summary to ``near``, like the gate in ``ExitHead.decide``;
NaN is not near. In ONNX's text form, a dot in a weight's name being ``_``."""

SELECTOR = """
    logarithms = LogSoftmax (logits)
    clipped = Clip (logarithms, least_logarithm)
    greatest, greatest_classes = TopK <axis = 1> (clipped, width)
    bounded = Clip (relative, nearest, farthest)
    last = Unsqueeze (bounded, column)
    seen = Concat <axis = 1> (greatest, last)
    weighed = Gemm <transB = 1> (seen, selector_network_0_weight, selector_network_0_bias)
    inner = Relu (weighed)
    hit = Gemm <transB = 1> (inner, selector_network_2_weight, selector_network_2_bias)
    logit = Squeeze (hit, column)
    sure = Sigmoid (logit)
"""
"""The nodes after ``GATE`` that compute how sure the selector is."""

GREATEST_SHARE = """
    shares = Softmax <axis = 1> (logits)
    sure = ReduceMax <axes = [1], keepdims = 0> (shares)
"""

MARGIN = """
    shares = Softmax <axis = 1> (logits)
    greatest, greatest_classes = TopK <axis = 1> (shares, two)
    both = ReduceSum <keepdims = 0> (greatest, column)
    most = ReduceMax <axes = [1], keepdims = 0> (greatest)
    lesser = Sub (both, most)
    sure = Sub (most, lesser)
"""

NUMBERS = """
    sum = ReduceSum <keepdims = 0> (logits, column)
    all = ReduceSum <keepdims = 0> (hidden, inner)
    any = Add (all, sum)
    finite = Sub (any, any)
    is_none = IsNaN (finite)
    near = Not (is_none)
"""
"""The nodes that compute ``near`` without a gate: NaN is not near."""

COUNTED = """
    reaches = GreaterOrEqual (sure, floor)
    counts = And (near, reaches)
    score = Where (counts, sure, nothing)
"""
"""The nodes from ``sure`` to the score, like ``ExitHead.decide``."""


class _Writer:
    """Writes nodes; those of the network's ``weights`` that nodes read become initialisers."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self._weights = weights
        self.nodes: list[NodeProto] = []
        self.initialisers: dict[str, TensorProto] = {}
        self.classes = 0
        """The classes of the predictor, once it is written."""

    def node(self, operator: str, *inputs: str, **attributes: object) -> str:
        """Append a node. Return the name of its output."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def add(self, text: str, **constants: float | Sequence[int]) -> None:
        """Append nodes in ONNX's text form."""
        weights = {name.replace(".", "_"): name for name in self._weights}
        # The parser takes whole graphs only; inputs and outputs of this one are not used.
        for node in onnx.parser.parse_graph(f"part (float a) => (float b) {{{text}}}").node:
            for place, name in enumerate(node.input):
                if name in weights:
                    node.input[place] = self.weight(weights[name])
                elif name in constants:
                    node.input[place] = self.constant(name, constants[name])
            self.nodes.append(node)

    def weight(self, name: str) -> str:
        return self._put(name, self._weights[name])

    def constant(self, name: str, value: float | Sequence[int] | np.ndarray) -> str:
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        return self._put(f"constant.{name}", array)

    def _put(self, name: str, array: np.ndarray) -> str:
        tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        self.initialisers[name] = tensor
        return name

    def predictor(self, predictor: nn.Module, shape: Shape) -> None:
        """Append the nodes from the hidden output to the logits."""
        value, example = INPUT, torch.zeros(1, *shape)
        is_chain = isinstance(predictor, nn.Sequential)
        layers = dict(predictor.named_children()) if is_chain else {"": predictor}
        for place, layer in layers.items():
            prefix = f"predictor.{place}." if place else "predictor."
            sides = example.shape[2:]
            with torch.no_grad():
                example = layer(example)
            match layer:
                case AsImage():
                    value = self.image(value)
                case nn.AdaptiveAvgPool2d():
                    value = self.pool(value, sides, example.shape[2:], f"{prefix}pool")
                case nn.Conv2d():
                    attributes = {
                        "kernel_shape": list(layer.kernel_size),
                        "strides": list(layer.stride),
                        "pads": [*layer.padding, *layer.padding],
                    }
                    value = self.node("Conv", value, *self._weights_of(prefix), **attributes)
                case nn.ReLU():
                    value = self.node("Relu", value)
                case nn.Flatten():
                    value = self.node("Flatten", value, axis=1)
                case nn.Linear():
                    value = self.node("Gemm", value, *self._weights_of(prefix), transB=1)
                case _:
                    raise InternalError(
                        f"a predictor with {type(layer).__name__} has no ONNX form"
                    )
        self.nodes[-1].output[0] = LOGITS
        self.classes = int(example.shape[1])

    def _weights_of(self, prefix: str) -> tuple[str, str]:
        return self.weight(f"{prefix}weight"), self.weight(f"{prefix}bias")

    def image(self, value: str) -> str:
        """Append the reshape of [rows, positions, features] to [rows, features, positions, 1]."""
        turned = self.node("Transpose", value, perm=[0, 2, 1])
        return self.node("Unsqueeze", turned, self.constant("last_axis", [3]))

    def pool(self, value: str, sides: Sequence[int], sizes: Sequence[int], name: str) -> str:
        """Append torch's adaptive average pooling from ``sides`` to ``sizes``: by windows if they
        tile, else by matrix products."""
        if all(side % size == 0 for side, size in zip(sides, sizes, strict=True)):
            window = [side // size for side, size in zip(sides, sizes, strict=True)]
            return self.node("AveragePool", value, kernel_shape=window, strides=window)
        down, across = (_averaging(*pair) for pair in zip(sides, sizes, strict=True))
        narrow = self.node("MatMul", value, self.constant(f"{name}.across", across.T))
        return self.node("MatMul", self.constant(f"{name}.down", down), narrow)

    def summary(self, shape: Shape) -> str:
        """Append what ``brisk.exits.heads.distance_gate.summary`` computes."""
        if len(shape) == 1:
            return INPUT
        image, sides = INPUT, shape[1:]
        if len(shape) == 2:
            image, sides = self.image(INPUT), (shape[0], 1)
        quarters = self.pool(image, sides, (2, 2), "quarters")
        flat = self.node("Flatten", quarters, axis=1)
        squares = self.node("Mul", image, image)
        mean = self.node("ReduceMean", squares, axes=[2, 3], keepdims=0)
        return self.node("Concat", flat, self.node("Sqrt", mean), axis=1)


def _averaging(side: int, size: int) -> np.ndarray:
    """Return torch's adaptive average along one axis as a matrix, float32 [size, side]."""
    matrix = np.zeros((size, side), np.float32)
    for place in range(size):
        start, stop = place * side // size, -(-(place + 1) * side // size)
        matrix[place, start:stop] = 1 / (stop - start)
    return matrix


def _compare(network: ExitHead, shape: Shape) -> None:
    """Compare the ONNX model's answers with the network's on random rows; raises InternalError.

    The gate lets all pass and there is no floor: these would hide the rest.
    """
    open_ = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(CHECKED_ROWS, *shape, generator=generator).relu_()
    with torch.no_grad():
        logits = open_.predictor(hidden)
        if isinstance(open_, GatedHead):
            distances = open_.distance(hidden, logits.argmax(1))
            open_.gate.limit.copy_(distances.double().mean().clamp_min(1e-3) * 2)
        open_.floor.zero_()
        expected, scores, near = (each.numpy() for each in open_(hidden))
    classes = expected.shape[1]
    answer = ExitModel(_written(open_, shape, ""), shape, AnswerForm(classes))(hidden.numpy())
    scale = max(float(np.abs(expected).max()), 1.0)
    apart = float(np.abs(answer.logits - expected).max()) / scale
    steady = answer.near == near
    by = float(np.abs(answer.scores - scores)[steady].max(initial=0.0))
    if not apart <= CLOSE_LOGITS or not by <= CLOSE_SCORES or steady.sum() < len(near) - 1:
        raise InternalError(
            f"a head's ONNX form differs from its network: logits by {apart:.1e} of the "
            f"greatest, scores by {by:.1e}, {len(near) - int(steady.sum())} of {len(near)} gated "
            "otherwise"
        )


@functools.lru_cache(maxsize=64)
def network_of(exit_: Exit) -> ExitHead:
    """Return the head of an exit, from its ONNX model, for training to go on from.

    The head of a whole model reads the logits of its evaluation. The object is cached, so it must
    not be changed. Raises DamagedFileError if the model is not what this version writes.
    """
    graph = parse(exit_.model, exit_.reads_input).graph
    if exit_.reads_input:
        return whole_model(_floor_of(graph))
    tensors = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if not tensor.name.startswith("constant.")
    }
    with torch.device("meta"):  # no memory for what the file may lack
        network = empty_head(exit_.variant, exit_.shape, exit_.form.classes, exit_.judge)
    load_weights(network, tensors)
    return network


def _floor_of(graph: GraphProto) -> float:
    for tensor in graph.initializer:
        if tensor.name == FLOOR_OF_WHOLE:
            return float(numpy_helper.to_array(tensor))
    raise DamagedFileError(f"an exit that is a whole model lacks '{FLOOR_OF_WHOLE}'")
