"""What passes share: who makes and who reads each value, and replacing layers by fused ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from brisk.graph.draft import (
    Draft,
    Index,
    captures_of,
    reads_of,
    rename_reads,
    rename_result,
)
from brisk.graph.operators import takes_body
from brisk.graph.program import Attribute, Epilogue, Layer, Node

ABSENT = ""


class Rewriter:
    """An index over a draft's layers that follows rewrites; used by one pass, then committed.

    Layers keep their positions, so that a fused layer stands where its last part stood, after
    everything that any part reads.
    """

    def __init__(self, draft: Draft) -> None:
        """Takes over what the pass before this one has indexed."""
        self.draft = draft
        self.rewrites = 0
        self._kept = set(draft.outputs)
        index = draft.index
        if index is None or index.layers is not draft.layers:
            index = _index(draft.layers)
        self._layers, self._captured = index.places, index.captured
        self._maker, self._readers = index.maker, index.readers
        self._is_changed = False
        draft.index = None

    def __iter__(self) -> Iterator[Layer]:
        """Layers in execution order; those already replaced are skipped."""
        for position in range(len(self._layers)):
            layer = self._layers[position]
            if layer is not None:
                yield layer

    def backwards(self) -> Iterator[Layer]:
        for position in reversed(range(len(self._layers))):
            layer = self._layers[position]
            if layer is not None:
                yield layer

    def commit(self) -> int:
        """Give the draft its new layers; return how many rewrites were made."""
        draft = self.draft
        if self._is_changed:
            draft.layers = [layer for layer in self._layers if layer is not None]
            self._captured = _captured(draft.layers)
        draft.index = Index(draft.layers, self._layers, self._maker, self._readers, self._captured)
        return self.rewrites

    def maker(self, name: str) -> Layer | None:
        """The layer that computes ``name``; None for inputs, weights and captures."""
        position = self._maker.get(name)
        return None if position is None else self._layers[position]

    def made_by(self, name: str, *operators: str) -> Node | None:
        """The single standard node that computes ``name`` if it is one of ``operators``."""
        layer = self.maker(name)
        if layer is None:
            return None
        node = plain(layer)
        return node if node is not None and node.operator in operators else None

    def readers(self, name: str) -> list[Layer]:
        found = [self._layers[position] for position in sorted(self._readers.get(name, ()))]
        return [layer for layer in found if layer is not None]

    def sole_reader(self, name: str) -> Layer | None:
        """The one layer that reads ``name``, once; None where others do or it is an output."""
        if name in self._kept or name in self._captured:
            return None
        readers = self.readers(name)
        if len(readers) != 1 or list(reads_of(readers[0])).count(name) != 1:
            return None
        return readers[0]

    def is_renamable(self, name: str) -> bool:
        """Whether readers may be given another name: no body and no caller knows this one."""
        return name not in self._kept and name not in self._captured

    def is_captured(self, name: str) -> bool:
        return name in self._captured

    def constant(self, name: str) -> np.ndarray | None:
        return self.draft.weights.get(name)

    def scalar(self, name: str) -> float | None:
        """The value of a constant with one element; None for anything else."""
        array = self.draft.weights.get(name)
        if array is None or array.size != 1 or array.dtype.kind not in "fiuV":
            return None
        return float(array.reshape(-1)[0])

    def fuse(
        self,
        root: Layer,
        parts: Iterable[Layer],
        main: Node,
        epilogue: tuple[Epilogue, ...] = (),
        nodes: Sequence[Node] | None = None,
    ) -> Layer | None:
        """Replace ``root`` and ``parts``, whose last is ``root``, by one layer.

        ``nodes``: the oracle, where it is not simply the parts' nodes one after the other.
        Returns the new layer; None, changing nothing, where a value inside has a reader
        outside. Constants that only oracle nodes read travel as Constant nodes.
        """
        inside = {self._position(part) for part in parts} | {self._position(root)}
        root_position = self._position(root)
        for position in inside - {root_position}:
            layer = self._layers[position]
            assert layer is not None
            for name in layer.outputs:
                if name and not (
                    self.is_renamable(name) and self._readers.get(name, set()) <= inside
                ):
                    return None
        if nodes is None:
            members = [self._layers[position] for position in sorted(inside)]
            nodes = [node for layer in members if layer is not None for node in layer.nodes]
        operands = set(main.inputs) | {step.operand for step in epilogue}
        fused = Layer(
            0,
            main,
            (*self._constants_for(nodes, operands), *nodes),
            root.outputs,
            epilogue,
            captures_of(main),
        )
        self.replace(root, fused)
        for position in inside - {root_position}:
            self._leave(position)
        return fused

    def replace(self, old: Layer, new: Layer) -> None:
        """Put ``new`` in the place of ``old``; it makes the same outputs."""
        position = self._position(old)
        self._leave(position)
        self._layers[position] = new
        self._enter(position, new)
        self.rewrites += 1

    def insert_before(self, layer: Layer, new: Layer) -> None:
        """Add a layer in front of ``layer``: into a gap there, else all behind it move by one."""
        position = self._position(layer)
        if position and self._layers[position - 1] is None:
            self._layers[position - 1] = new
            self._enter(position - 1, new)
            return
        self._layers.insert(position, new)
        self._is_changed = True
        self._maker, self._readers = {}, {}
        for position, entry in enumerate(self._layers):
            if entry is not None:
                self._enter(position, entry)

    def remove(self, layer: Layer) -> None:
        self._leave(self._position(layer))
        self.rewrites += 1

    def redirect(self, old: str, new: str) -> None:
        """Make every reader of ``old`` read ``new``. Precondition: ``is_renamable(old)``."""
        for layer in self.readers(old):
            position = self._position(layer)
            self._leave(position)
            renamed = rename_reads(layer, {old: new})
            self._layers[position] = renamed
            self._enter(position, renamed)

    def absorb(self, layer: Layer, source: str) -> bool:
        """Remove ``layer``, a copy of ``source`` with a name that must stay, if possible.

        The copy's name goes to what makes ``source``; False, changing nothing, where both names
        must stay or this graph does not compute ``source``.
        """
        (target,) = layer.outputs
        maker = self.maker(source)
        if maker is None or not self.is_renamable(source):
            return False
        self.remove(layer)
        self.redirect(source, target)
        position = self._maker[source]
        self._leave(position)
        renamed = rename_result(maker, source, target)
        self._layers[position] = renamed
        self._enter(position, renamed)
        self.draft.types.setdefault(target, self.draft.type_of(source))
        return True

    def _constants_for(self, nodes: Sequence[Node], operands: set[str | None]) -> list[Node]:
        wanted = {name: None for node in nodes for name in node.inputs if name not in operands}
        return [
            self.draft.node("Constant", (), (name,), value=self.draft.weights[name])
            for name in wanted
            if name in self.draft.weights
        ]

    def _position(self, layer: Layer) -> int:
        return self._maker[next(name for name in layer.outputs if name)]

    def _enter(self, position: int, layer: Layer) -> None:
        self._is_changed = True
        _enter(position, layer, self._maker, self._readers)

    def _leave(self, position: int) -> None:
        self._is_changed = True
        layer = self._layers[position]
        assert layer is not None
        self._layers[position] = None
        for name in layer.outputs:
            self._maker.pop(name, None)
        for name in reads_of(layer):
            self._readers[name].discard(position)


def _index(layers: list[Layer]) -> Index:
    maker: dict[str, int] = {}
    readers: dict[str, set[int]] = {}
    for position, layer in enumerate(layers):
        _enter(position, layer, maker, readers)
    return Index(layers, list(layers), maker, readers, _captured(layers))


def _captured(layers: list[Layer]) -> frozenset[str]:
    return frozenset(name for layer in layers for name in layer.captures)


def _enter(
    position: int, layer: Layer, maker: dict[str, int], readers: dict[str, set[int]]
) -> None:
    for name in layer.outputs:
        if name:
            maker[name] = position
    for name in reads_of(layer):
        known = readers.get(name)
        if known is None:
            readers[name] = {position}
        else:
            known.add(position)


def plain(layer: Layer) -> Node | None:
    """The layer's node if it is a single standard one with nothing fused and no body."""
    main = layer.main
    if len(layer.nodes) != 1 or layer.epilogue or main.domain or takes_body(main.operator):
        return None
    return main


def rewired(node: Node, *inputs: str, **attributes: Attribute) -> Node:
    """``node`` with other inputs and further attributes."""
    while inputs and not inputs[-1]:
        inputs = inputs[:-1]
    return replace(node, inputs=inputs, attributes={**node.attributes, **attributes})


def optional_input(node: Node, position: int) -> str:
    return node.inputs[position] if position < len(node.inputs) else ABSENT
