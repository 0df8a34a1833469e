"""Recognises a linear layer whose input is quantised at run time, as exporters spell it.

DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul by both scales (-> Add of a bias). Layers
that share one quantised input each repeat the quantisation among their oracle nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from brisk.graph.draft import Draft
from brisk.graph.fusions import DYNAMIC_QUANTIZED_LINEAR, fused
from brisk.graph.program import Layer, Node
from brisk.graph.rewriting import Rewriter, optional_input, plain


def fuse_dynamic_quantization(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in list(graph):
        node = plain(layer)
        if node is not None and node.operator == "MatMulInteger":
            _fuse(graph, layer, node)
    return graph.commit()


def _fuse(graph: Rewriter, layer: Layer, product: Node) -> None:
    draft = graph.draft
    quantise = graph.made_by(product.inputs[0], "DynamicQuantizeLinear")
    weight = graph.constant(product.inputs[1])
    zero_point = optional_input(product, 3)
    if quantise is None or weight is None or weight.ndim != 2:
        return
    if (draft.type_of(quantise.inputs[0]).rank or 0) < 2:
        return
    if (
        product.inputs[0] != quantise.outputs[0]
        or optional_input(product, 2) != quantise.outputs[2]
    ):
        return
    columns = (weight.shape[1],)
    if zero_point and not _is_per_column(graph, zero_point, columns):
        return
    cast_layer = graph.sole_reader(product.outputs[0])
    cast = None if cast_layer is None else plain(cast_layer)
    if cast_layer is None or cast is None or cast.operator != "Cast":
        return
    if draft.type_of(cast.outputs[0]).dtype != "float32":
        return
    root = graph.sole_reader(cast.outputs[0])
    scaling = None if root is None else plain(root)
    if root is None or scaling is None or scaling.operator != "Mul":
        return
    scales = scaling.inputs[1 if scaling.inputs[0] == cast.outputs[0] else 0]
    combined, combined_layer = graph.made_by(scales, "Mul"), graph.maker(scales)
    if combined is None or combined_layer is None or quantise.outputs[1] not in combined.inputs:
        return
    scale = combined.inputs[1 if combined.inputs[0] == quantise.outputs[1] else 0]
    if not _is_per_column(graph, scale, columns):
        return
    parts = [layer, cast_layer, root]
    shared = [quantise, combined]
    if graph.sole_reader(scales) is not None:
        parts.append(combined_layer)
    bias = ""
    adder = graph.sole_reader(root.outputs[0])
    add = None if adder is None else plain(adder)
    if adder is not None and add is not None and add.operator == "Add":
        other = add.inputs[1 if add.inputs[0] == root.outputs[0] else 0]
        array = graph.constant(other)
        if array is not None and array.shape == columns:
            bias, root = other, adder
            parts.append(adder)
    inputs: tuple[str, ...] = (quantise.inputs[0], product.inputs[1], scale, zero_point, bias)
    while not inputs[-1]:
        inputs = inputs[:-1]
    main = fused(DYNAMIC_QUANTIZED_LINEAR, inputs, root.outputs, layer.name)
    graph.fuse(
        root,
        parts,
        main,
        nodes=_oracle(graph, shared, (product, cast, scaling, add if bias else None)),
    )


def _is_per_column(graph: Rewriter, name: str, columns: tuple[int, ...]) -> bool:
    array = graph.constant(name)
    return array is not None and array.shape in ((), (1,), columns)


def _oracle(graph: Rewriter, shared: Sequence[Node], own: Sequence[Node | None]) -> list[Node]:
    """The matched nodes, those that others may share first and with results of their own."""
    draft = graph.draft
    made = [node for node in own if node is not None]
    target = made[-1].outputs[0]
    names = {
        name: draft.add_value(f"{target}.{name}", draft.type_of(name))
        for node in shared
        for name in node.outputs
    }
    return [
        replace(
            node,
            inputs=tuple(names.get(name, name) for name in node.inputs),
            outputs=tuple(names.get(name, name) for name in node.outputs),
        )
        for node in (*shared, *made)
    ]
