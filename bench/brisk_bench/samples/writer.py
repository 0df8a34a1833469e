"""Writes ONNX graphs node by node, the way an exporter would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence["int | str"]

_ELEMENT = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


class GraphWriter:
    """Collects nodes and weights; names every value after the operator that makes it."""

    def __init__(self, name: str, opset: int) -> None:
        self._name = name
        self._opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dtype: str, shape: Shape) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, _ELEMENT[dtype], list(shape)))
        return name

    def output(self, value: str, name: str, dtype: str, shape: Shape) -> None:
        """Make ``value`` a graph output called ``name``."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"{name}_out"))
        self._outputs.append(helper.make_tensor_value_info(name, _ELEMENT[dtype], list(shape)))

    def weight(self, array: np.ndarray, hint: str = "weight") -> str:
        """Add a constant; float64 becomes float32, which all samples compute in."""
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        name = f"{hint}_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def integers(self, *values: int) -> str:
        return self.weight(np.array(values, np.int64), "shape")

    def scalar(self, value: float) -> str:
        return self.weight(np.array(value, np.float32), "scalar")

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output and return the output's name."""
        name = f"{operator.lower()}_{len(self._nodes)}"
        node = helper.make_node(operator, list(inputs), [f"{name}_value"], name, **attributes)
        self._nodes.append(node)
        return f"{name}_value"

    def batch_normalised(
        self,
        value: str,
        channels: int,
        random: np.random.Generator,
        spread: float,
        shift: float,
        gain: float = 1.0,
    ) -> str:
        """Append batch normalisation with random statistics.

        Scales and variances are within ``spread`` of 1 (scales times ``gain``), shifts and means
        have the deviation ``shift``.
        """
        statistics = (
            random.uniform(1 - spread, 1 + spread, channels) * gain,
            random.normal(0, shift, channels),
            random.normal(0, shift, channels),
            random.uniform(1 - spread, 1 + spread, channels),
        )
        names = [self.weight(array, "norm") for array in statistics]
        return self.add("BatchNormalization", value, *names, epsilon=1e-5)

    def gelu(self, value: str) -> str:
        """Append 0.5 * value * (1 + erf(value / sqrt(2)))."""
        inner = self.add("Erf", self.add("Div", value, self.scalar(2.0**0.5)))
        inner = self.add("Mul", value, self.add("Add", inner, self.scalar(1.0)))
        return self.add("Mul", inner, self.scalar(0.5))

    def model(self) -> onnx.ModelProto:
        """Return the finished, checked model."""
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, self._weights
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self._opset)],
            producer_name="brisk-samples",
            ir_version=8,
        )
        onnx.checker.check_model(model)
        return model
