"""Names for sizes that are no numbers, so that equal sizes are known to be equal.

``onnx.shape_inference`` leaves sizes open after a convolution over an image of unknown height,
or after shape arithmetic. Here every size gets a name that says how it came about: two values
whose sizes carry the same names have the same shape whatever the request. Residual additions
are fused, and reshapes freed of run-time shape arithmetic, on that evidence.
"""

from __future__ import annotations

from dataclasses import replace

from brisk.graph.draft import Draft
from brisk.graph.program import Container, Dimension, ValueType
from brisk.graph.rewriting import plain
from brisk.graph.symbolic.shapes import sizes_of
from brisk.graph.symbolic.values import elements_of


def propagate(draft: Draft) -> None:
    """Complete ``draft.types`` and ``draft.values``, layer by layer in execution order."""
    for name in [*(variable.name for variable in draft.inputs), *draft.captures]:
        _complete(draft, name, None)
    for layer in draft.layers:
        node = plain(layer)
        outputs = sizes_of(node, draft) if node is not None else {}
        for name in layer.outputs:
            if name:
                _complete(draft, name, outputs.get(name))
        if node is not None:
            elements = elements_of(node, draft)
            if elements is not None:
                draft.values[node.outputs[0]] = elements


def _complete(draft: Draft, name: str, sizes: tuple[Dimension, ...] | None) -> None:
    """Fill the unknown sizes of value ``name``, from ``sizes`` or with a name of their own."""
    known = draft.type_of(name)
    if known.container is not Container.TENSOR:
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
