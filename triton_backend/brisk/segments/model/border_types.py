"""What a segment's model says of the values that cross its borders.

ONNX Runtime refuses a value whose sizes are not those that an input of a model declares, where
within one model it only warns. So a border declares what is sure and no more; but it does declare
that, since fusions and blocked layouts are chosen by it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TypeProto

from brisk.segments.model.cutting import bodies_of, reads_of, value_types

_SURE_SIZES = frozenset(
    {
        *("Conv", "BatchNormalization", "LRN", "InstanceNormalization"),
        *("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
        *("Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish"),
        *("Elu", "Selu", "Softplus", "Add", "Sub", "Mul", "Div", "Sum", "Concat", "Identity"),
        *("Dropout", "Unsqueeze", "Flatten", "Transpose", "Gemm", "MatMul", "Softmax", "Cast"),
    }
)
"""Operators whose sizes follow from those of what they read, by one rule that all
follow. ONNX's inference and ONNX Runtime's kernels have not always agreed on others, such as
resizing, nor on pools that round up.
"""

_ROWS = "brisk:rows:"
"""Begins the name of a first dimension that has a number: equal numbers have equal names, as
ONNX Runtime takes sizes of one name for equal.
"""

_NO_SHAPE, _RANK, _SIZES = range(3)
"""What is sure of a value; of what a node makes no more than of each value that it reads."""


def border_types(
    model: ModelProto, typed: ModelProto, crossing: Collection[str]
) -> Mapping[str, TypeProto]:
    """Of each of ``crossing``, values that cross a border: element type, and of the shape what is
    sure. ``typed``: the model with inferred types.

    Sizes are numbers, or names that the model's inputs have. A first dimension has no number:
    jobs go on with some rows of a batch.
    """
    types, outputs = value_types(typed.graph), {info.name for info in model.graph.output}
    if model.graph.value_info or not outputs.isdisjoint(crossing):
        shapes = _inferred_alone(model)
    else:
        shapes = types
    sure = _sureness(model)
    own = {
        dim.dim_param
        for info in model.graph.input
        for dim in info.type.tensor_type.shape.dim
        if dim.dim_param
    }
    return {
        name: _border_type(types[name], shapes.get(name), sure.get(name, _NO_SHAPE), own)
        for name in crossing
        if name in types
    }


def _inferred_alone(model: ModelProto) -> Mapping[str, TypeProto]:
    """Types that follow from inputs and weights; what the file says of other values is not taken
    for true.
    """
    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for info in bare.graph.output:
        info.type.tensor_type.ClearField("shape")
    try:
        return value_types(onnx.shape_inference.infer_shapes(bare, data_prop=False).graph)
    except Exception:  # noqa: BLE001  # then nothing is sure
        return {}


def _sureness(model: ModelProto) -> Mapping[str, int]:
    """By name of a value, what may be said of its shape."""
    graph: GraphProto = model.graph
    sure: dict[str, int] = {}
    for node in graph.node:
        found = min([_of_node(node), *(sure.get(name, _SIZES) for name in reads_of(node))])
        sure.update((name, found) for name in node.output if name)
    sure.update((info.name, _SIZES) for info in graph.input)
    return sure


def _of_node(node: NodeProto) -> int:
    if node.domain not in ("", "ai.onnx") or any(
        True for attribute in node.attribute for _ in bodies_of(attribute)
    ):
        return _NO_SHAPE
    rounds_up = any(each.name == "ceil_mode" and each.i for each in node.attribute)
    return _SIZES if node.op_type in _SURE_SIZES and not rounds_up else _RANK


def _border_type(kind: TypeProto, shape: TypeProto | None, sure: int, own: set[str]) -> TypeProto:
    border = TypeProto()
    border.CopyFrom(kind)
    if not border.HasField("tensor_type"):
        return border
    border.tensor_type.ClearField("shape")
    if sure == _NO_SHAPE or shape is None or not shape.tensor_type.HasField("shape"):
        return border
    known = shape.tensor_type.shape.dim
    dims = border.tensor_type.shape.dim
    border.tensor_type.shape.SetInParent()
    for axis, size in enumerate(known):
        dim = dims.add()
        if sure < _SIZES:
            continue
        if size.dim_param in own:
            dim.dim_param = size.dim_param
        elif size.dim_value > 0 and axis:
            dim.dim_value = size.dim_value
        elif size.dim_value > 0:
            dim.dim_param = f"{_ROWS}{size.dim_value}"
    return border
