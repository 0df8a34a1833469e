"""Names for sizes that are no numbers, so that equal sizes are known to be equal.

``onnx.shape_inference`` leaves sizes open after a convolution over an image of unknown height,
or after shape arithmetic. Here every size gets a name that says how it came about: two values
whose sizes carry the same names have the same shape whatever the request. Residual additions
are fused, and reshapes freed of run-time shape arithmetic, on that evidence.
"""

from __future__ import annotations

from dataclasses import replace

from brisk.graph.draft import Draft
from brisk.graph.program import ContainerKind, Dimension, Node, ValueType
from brisk.graph.rewriting import plain
from brisk.graph.symbolic.shapes import demanded_rank, sizes_of
from brisk.graph.symbolic.values import elements_of


def propagate(draft: Draft) -> None:
    """Complete ``draft.types`` and ``draft.values``, layer by layer in execution order."""
    for name in [*(variable.name for variable in draft.inputs), *draft.captures]:
        _complete(draft, name, None)
    for layer in draft.layers:
        node = plain(layer)
        if node is not None:
            _accept_demand(node, draft)
        outputs = sizes_of(node, draft) if node is not None else {}
        for name in layer.outputs:
            if name:
                _complete(draft, name, outputs.get(name))
        if node is not None:
            elements = elements_of(node, draft)
            if elements is not None:
                draft.values[node.outputs[0]] = elements


def _accept_demand(node: Node, draft: Draft) -> None:
    """Give the first input the rank without which ``node`` could not run."""
    if not node.inputs or draft.type_of(node.inputs[0]).shape is not None:
        return
    rank = demanded_rank(node, draft)
    if rank is not None:
        draft.types[node.inputs[0]] = replace(draft.type_of(node.inputs[0]), shape=(None,) * rank)
        _complete(draft, node.inputs[0], None)


def _complete(draft: Draft, name: str, sizes: tuple[Dimension, ...] | None) -> None:
    """Fill the unknown sizes of value ``name``, from ``sizes`` or with a name of their own."""
    known = draft.type_of(name)
    if known.container is not ContainerKind.TENSOR:
        return
    shape = known.shape if known.shape is not None else sizes
    if shape is None:
        return
    if sizes is None or len(sizes) != len(shape):
        sizes = (None,) * len(shape)
    label = name.replace("*", "_")
    completed = tuple(
        size if size is not None else (guess if guess is not None else f"{label}.{axis}")
        for axis, (size, guess) in enumerate(zip(shape, sizes, strict=True))
    )
    if completed != known.shape:
        draft.types[name] = (
            replace(known, shape=completed) if known.dtype else ValueType(None, completed)
        )
