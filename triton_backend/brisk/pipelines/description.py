"""What a pipeline entry says, as records. See docs/pipelines.md for the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REQUEST = "request"
"""Stands where a node's name does, for the inputs of the pipeline itself."""


@dataclass(frozen=True, slots=True)
class NodeSource:
    """A tensor that a node makes; ``node`` None: one that the request brings."""

    node: str | None
    tensor: str

    def __str__(self) -> str:
        return f"{self.node or REQUEST}.{self.tensor}"


@dataclass(frozen=True, slots=True)
class VariantDescription:
    """One network for a node. ``accuracy``: share of right answers, 0 to 1."""

    name: str
    path: Path
    accuracy: float


@dataclass(frozen=True, slots=True)
class EarlyAnswer:
    """A network tried before the node's variant, with the node's own inputs and outputs.

    Its answer is taken where every row of its output ``confidence``, class probabilities along
    the last axis, has one of ``at_least``.
    """

    path: Path
    confidence: str
    at_least: float


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """``inputs``: where each input tensor of the node's networks comes from."""

    name: str
    inputs: Mapping[str, NodeSource]
    variants: tuple[VariantDescription, ...]
    early_answer: EarlyAnswer | None

    @property
    def after(self) -> tuple[str, ...]:
        """The nodes whose outputs it reads."""
        names = (source.node for source in self.inputs.values())
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def networks(self) -> tuple[tuple[str, Path], ...]:
        """Every network of the node with the words that errors name it by."""
        named = [(f"node '{self.name}', variant '{v.name}'", v.path) for v in self.variants]
        if self.early_answer is not None:
            named.insert(0, (f"node '{self.name}', its early answer", self.early_answer.path))
        return tuple(named)


@dataclass(frozen=True, slots=True)
class PipelineDescription:
    """``nodes`` are in an order in which they can run.

    ``policy`` and ``replanning`` are names that ``brisk.planning`` knows. ``trial_shapes``: of
    inputs of the pipeline for the trial run, whole shapes with the batch.
    """

    path: Path
    objective_ns: int
    policy: str
    replanning: str
    nodes: tuple[NodeDescription, ...]
    outputs: Mapping[str, NodeSource]
    trial_shapes: Mapping[str, tuple[int, ...]]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that a request brings, in the order in which they are named."""
        sources = (source for node in self.nodes for source in node.inputs.values())
        return tuple(dict.fromkeys(s.tensor for s in sources if s.node is None))

    @property
    def networks(self) -> tuple[tuple[str, Path], ...]:
        """Of all nodes; a file may be there more than once."""
        return tuple(network for node in self.nodes for network in node.networks)
