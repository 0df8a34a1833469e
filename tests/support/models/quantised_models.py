"""Networks with weights of 4 and 8 bits behind DequantizeLinear, and chains on integers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LIMITS = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
}
BYTES = {TensorProto.INT8: np.int8, TensorProto.UINT8: np.uint8}
CONTRIBUTED = "com.microsoft"


class Quantised(NamedTuple):
    """A network and what it is run with."""

    model: onnx.ModelProto
    inputs: tuple[Mapping[str, np.ndarray], ...]
    """The inputs of several runs, with different numbers of rows."""


class QuantisedGraph:
    """A graph that is written node by node; all values are float32 but where it says so."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.random = np.random.default_rng(1)

    def add(self, operator: str, *inputs: str, **attributes: object) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def keep(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def quantised_weight(
        self, kind: int, shape: tuple[int, ...], axis: int, block: int = 0, *, offset: bool = False
    ) -> str:
        """Add a weight behind DequantizeLinear, with a scale for each place of ``axis``, or for
        each block; return its name. A whole byte for each value is written as files have it."""
        low, high = LIMITS[kind]
        name = f"w{len(self.weights)}"
        values = self.random.integers(low, high + 1, shape)
        if dtype := BYTES.get(kind):
            self.weights.append(numpy_helper.from_array(values.astype(dtype), name))
        else:
            self.weights.append(helper.make_tensor(name, kind, shape, values.reshape(-1).tolist()))
        scales = [shape[axis]]
        if block:
            scales = [size // block if each == axis else size for each, size in enumerate(shape)]
        reads = [name, self.keep(self.random.uniform(0.01, 0.1, scales).astype("f4") / high)]
        if offset:
            zero, count = f"w{len(self.weights)}", int(np.prod(scales))
            points = self.random.integers(low, high + 1, count).tolist()
            self.weights.append(helper.make_tensor(zero, kind, scales, points))
            reads.append(zero)
        attributes = {"axis": axis, "block_size": block} if block else {"axis": axis}
        return self.add("DequantizeLinear", *reads, **attributes)

    def through_integers(self, value: str, scale: float = 0.05, zero: int = 128) -> str:
        """Add QuantizeLinear and DequantizeLinear of uint8 behind ``value``; return the name of
        the last."""
        reads = self.keep(np.float32(scale)), self.keep(np.uint8(zero))
        return self.add("DequantizeLinear", self.add("QuantizeLinear", value, *reads), *reads)

    def model(
        self, x: tuple[int | str, ...], y: str, rank: int, opset: int = 21, kind: int = 1
    ) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "quantised",
            [helper.make_tensor_value_info("x", kind, x)],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, [None] * rank)],
            self.weights,
        )
        sets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIBUTED, 1)]
        return helper.make_model(graph, opset_imports=sets, ir_version=10)

    def rows(self, *shape: int) -> np.ndarray:
        return self.random.standard_normal(shape).astype(np.float32)


def product_of(
    operator: str, kind: int, inner: int, outer: int, block: int, *, offset: bool
) -> Quantised:
    graph = QuantisedGraph()
    weight = graph.quantised_weight(kind, (inner, outer), 0 if block else 1, block, offset=offset)
    y = graph.add(operator, "x", weight)
    inputs = tuple({"x": graph.rows(rows, inner)} for rows in (1, 7))
    return Quantised(graph.model(("n", inner), y, 2), inputs)


def gathered(kind: int, block: int, *, offset: bool) -> Quantised:
    graph = QuantisedGraph()
    weight = graph.quantised_weight(kind, (32, 64), 1 if block else 0, block, offset=offset)
    y = graph.add("Gather", weight, "x")
    model = graph.model(("n",), y, 2, kind=TensorProto.INT64)
    return Quantised(model, ({"x": np.array([1, 31, 0, 1])},))


def convolved(kind: int, block: int, *, offset: bool) -> Quantised:
    graph = QuantisedGraph()
    weight = graph.quantised_weight(kind, (16, 16, 3, 3), 1 if block else 0, block, offset=offset)
    y = graph.add("Conv", "x", weight, pads=[1] * 4)
    inputs = tuple({"x": graph.rows(rows, 16, 8, 8)} for rows in (1, 3))
    return Quantised(graph.model(("n", 16, 8, 8), y, 4), inputs)


def layers_of_four_bits(layers: int = 3, width: int = 256) -> Quantised:
    """Return ``layers`` products with weights of four bits, one after the other."""
    graph = QuantisedGraph()
    value = "x"
    for _ in range(layers):
        weight = graph.quantised_weight(TensorProto.INT4, (width, width), 0, 32)
        value = graph.add("Tanh", graph.add("MatMul", value, weight))
    inputs = tuple({"x": graph.rows(rows, width)} for rows in (1, 5))
    return Quantised(graph.model(("n", width), value, 2), inputs)


def in_a_body() -> Quantised:
    """Return an If whose branches contain the weight and the product."""
    branches = {}
    for name in ("then_branch", "else_branch"):
        inside = QuantisedGraph()
        weight = inside.quantised_weight(TensorProto.INT4, (64, 32), 0, 16)
        output = inside.add("MatMul", "x", weight)
        inside.nodes[-1].output[0] = f"{name}_{output}"
        inside.nodes[0].output[0] = inside.nodes[-1].input[1] = f"{name}_{weight}"
        end = helper.make_tensor_value_info(f"{name}_{output}", TensorProto.FLOAT, ["n", 32])
        branches[name] = helper.make_graph(inside.nodes, name, [], [end], inside.weights)
        for tensor in branches[name].initializer:
            tensor.name = f"{name}_{tensor.name}"
        for node in branches[name].node:
            for place, input_name in enumerate(node.input):
                if input_name.startswith("w"):
                    node.input[place] = f"{name}_{input_name}"
    graph = QuantisedGraph()
    choice = graph.add(
        "Greater", graph.add("ReduceSum", "x", keepdims=0), graph.keep(np.float32())
    )
    y = graph.add("If", choice, **branches)
    inputs = tuple({"x": graph.rows(rows, 64)} for rows in (1, 6))
    return Quantised(graph.model(("n", 64), y, 2), inputs)


def contributed(bits: int, level: int) -> Quantised:
    """Return the product that ONNX Runtime makes of such weights, written into the file."""
    inner, outer, block = 64, 32, 32
    graph = QuantisedGraph()
    shape = (outer, inner // block, block * bits // 8)
    weight = graph.keep(graph.random.integers(0, 256, shape).astype(np.uint8))
    scale = graph.keep(graph.random.uniform(0.01, 0.1, outer * shape[1]).astype("f4"))
    y = graph.add(
        "MatMulNBits",
        "x",
        weight,
        scale,
        domain=CONTRIBUTED,
        K=inner,
        N=outer,
        bits=bits,
        block_size=block,
        accuracy_level=level,
    )
    inputs = tuple({"x": graph.rows(rows, inner)} for rows in (1, 5))
    return Quantised(graph.model(("n", inner), y, 2), inputs)


def chain_on_integers(*, hoisted: bool = False, stages: int = 3) -> Quantised:
    """Convolutions, sums, pools and attention, each between QuantizeLinear and DequantizeLinear.

    ``hoisted``: weights are scaled back at the beginning, as ONNX Runtime's quantiser writes them.
    """
    graph, channels = QuantisedGraph(), 8

    def weight() -> str:
        return graph.quantised_weight(TensorProto.INT8, (channels, channels, 3, 3), 0)

    weights = [weight() for _ in range(2 * stages)] if hoisted else []

    def convolution(value: str) -> str:
        kernel = weights.pop() if hoisted else weight()
        return graph.add("Conv", value, kernel, pads=[1] * 4)

    pool = {"kernel_shape": [3, 3], "pads": [1] * 4}
    value = graph.through_integers("x")
    for _ in range(stages):
        branch = graph.through_integers(graph.add("Relu", convolution(value)))
        branch = graph.through_integers(convolution(branch))
        value = graph.through_integers(graph.add("Add", value, branch))
        value = graph.through_integers(graph.add("MaxPool", value, **pool))
        gate = graph.through_integers(graph.add("Sigmoid", value), 1 / 255, 0)
        value = graph.through_integers(graph.add("Mul", value, gate))
        average = graph.through_integers(graph.add("AveragePool", value, **pool))
        value = graph.through_integers(graph.add("Concat", value, average, axis=2))
        turned = graph.through_integers(graph.add("Transpose", value, perm=[0, 1, 3, 2]))
        scores = graph.through_integers(graph.add("MatMul", value, turned), 0.5)
        shares = graph.through_integers(graph.add("Softmax", scores), 1 / 255, 0)
        value = graph.through_integers(graph.add("MatMul", shares, value))
        value = graph.through_integers(graph.add("LeakyRelu", value))
    y = graph.through_integers(graph.add("GlobalAveragePool", value))
    inputs = tuple({"x": graph.rows(rows, channels, 6, 6)} for rows in (1, 3))
    return Quantised(graph.model(("n", channels, 6, 6), y, 4), inputs)


def called_quantisers(model: onnx.ModelProto, depth: int) -> None:
    """Let functions, in ``depth`` - 1 others, quantise values and scale them back."""
    sets, names = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)], ["a", "b", "c"]
    for operator in ("QuantizeLinear", "DequantizeLinear"):
        called, domain = operator, ""
        for level in range(depth):
            node = helper.make_node(called, names, ["d"], domain=domain)
            called, domain = f"{operator}{level}", "own"
            function = helper.make_function(domain, called, names, ["d"], [node], sets)
            model.functions.append(function)
        for node in model.graph.node:
            if node.op_type == operator and not node.attribute:
                node.op_type, node.domain = called, domain
    model.opset_import.append(sets[1])


def _cases() -> Iterator[tuple[str, Callable[[], Quantised]]]:
    for kind, offset in product(LIMITS, (False, True)):
        words = f"{TensorProto.DataType.Name(kind)}{'-offset' * offset}"
        for operator, (inner, outer), block in product(
            ("MatMul", "Gemm"), ((4, 2), (64, 32), (512, 512)), (0, 16, 32)
        ):
            if inner >= block:
                name = f"{operator}-{words}-{inner}x{outer}-{block}"
                arguments = operator, kind, inner, outer, block
                yield name, functools.partial(product_of, *arguments, offset=offset)
        for (word, build), block in product((("Gather", gathered), ("Conv", convolved)), (0, 16)):
            yield f"{word}-{words}-{block}", functools.partial(build, kind, block, offset=offset)
    for bits, level in product((4, 8), (0, 1, 4)):
        yield f"MatMulNBits-{bits}-{level}", functools.partial(contributed, bits, level)
    yield "layers", layers_of_four_bits
    yield "body", in_a_body
    yield "chain", chain_on_integers
    yield "hoisted-chain", functools.partial(chain_on_integers, hoisted=True)


CASES: Mapping[str, Callable[[], Quantised]] = dict(_cases())
