"""The ONNX nodes of an artefact's layers, read when somebody asks for them.

Only the reference solution computes by them, so most starts never do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, overload

from brisk.artefacts.container import Container
from brisk.errors import ArtefactError
from brisk.graph.program import Node

ReadNodes: TypeAlias = Callable[[Any, Container], tuple[Node, ...]]
"""Nodes of a record, their arrays verified."""


class Oracle:
    """The nodes of all layers of a program that have any but their main one. Thread-safe."""

    def __init__(self, blob: int | None, container: Container, read_nodes: ReadNodes) -> None:
        """``blob`` holds them as JSON. Raises ArtefactError where there is no such blob."""
        if blob is not None:
            container.place(blob)
        self._blob = blob
        self._container = container
        self._read_nodes = read_nodes
        self._records: Mapping[str, Any] | None = None

    def nodes(self, layer: int) -> tuple[Node, ...]:
        """Raises ArtefactError where they are damaged, or are none."""
        try:
            if self._records is None:  # two threads may both read it: the same
                self._records = self._read()
            return self._read_nodes(self._records[str(layer)], self._container)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            path = self._container.path
            raise ArtefactError(f"{path}: no nodes of layer {layer}: {error!r}") from error

    def _read(self) -> Mapping[str, Any]:
        if self._blob is None:
            return {}
        records: Mapping[str, Any] = json.loads(self._container.copied(self._blob))
        return records


class DeferredNodes(Sequence[Node]):
    """Of one layer. Whatever is asked of them reads them; raises ArtefactError."""

    __slots__ = ("_layer", "_nodes", "_oracle")

    def __init__(self, oracle: Oracle, layer: int) -> None:
        self._oracle, self._layer = oracle, layer
        self._nodes: tuple[Node, ...] | None = None

    def __len__(self) -> int:
        return len(self._read())

    @overload
    def __getitem__(self, position: int) -> Node: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Node]: ...
    def __getitem__(self, position: int | slice) -> Node | Sequence[Node]:
        return self._read()[position]

    def _read(self) -> tuple[Node, ...]:
        if self._nodes is None:
            self._nodes = self._oracle.nodes(self._layer)
        return self._nodes
