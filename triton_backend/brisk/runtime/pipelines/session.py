"""A pipeline, loaded: its nodes' networks, each a session shared with ordinary entries."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

from brisk.errors import InvalidRequestError
from brisk.graph.program import Variable
from brisk.pipelines import (
    NetworkSignature,
    NodeDescription,
    PipelineDescription,
    TensorType,
    check_networks,
)
from brisk.pipelines.query import POLICIES, NetworkVariant, Query, QueryNode, Replanning
from brisk.runtime.early_exit.audits import CachedRun
from brisk.runtime.models.session import Due, Frame, Session
from brisk.runtime.pipelines.frame import (
    NodeNetworks,
    PipelineFrame,
    PipelineNetwork,
    shapes_of,
)
from brisk.runtime.pipelines.latency import Shapes
from brisk.segments.values import Value


@dataclass(frozen=True, slots=True)
class PipelineSession:
    """What a binding of a pipeline has where another one has a Session.

    ``signature`` is what it takes and gives. Used by the worker's main thread alone.
    """

    description: PipelineDescription
    signature: NetworkSignature
    nodes: Mapping[str, NodeNetworks]
    load_ns: int
    labels: tuple[str, str]
    threads: ClassVar[int] = 1
    weight_bytes: ClassVar[int] = 0
    has_steady_runs: ClassVar[bool] = False
    """They are as long as their time allows."""
    is_loading: ClassVar[bool] = False
    """Its networks have been loaded before it was made."""
    table: ClassVar[None] = None
    caches: ClassVar[None] = None

    def close(self) -> None:
        """Its networks are freed by whoever counts their users."""

    @property
    def summary(self) -> str:
        counts = ", ".join(f"{n} ×{len(node.variants)}" for n, node in self.nodes.items())
        return f"pipeline of {len(self.nodes)} nodes ({counts}) in {self.load_ns / 1e6:.0f} ms"

    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
        dues: Sequence[Due] = (),
    ) -> PipelineFrame:
        """As ``Servable``: planned for the request that is due first, by its own time-out or else
        by the entry's objective. Raises InvalidRequestError where names do not fit the pipeline.
        """
        _check_names("input", inputs, self.signature.inputs)
        _check_names("output", requested, self.signature.outputs)
        missing = [name for name in self.signature.inputs if name not in inputs]
        if missing:
            raise InvalidRequestError(f"input '{missing[0]}' of the pipeline is missing")
        objective_ns = self.description.objective_ns
        due_ns = min(
            each.arrival_ns + objective_ns if each.deadline_ns is None else each.deadline_ns
            for each in dues
        )
        now_ns = time.monotonic_ns()
        query = Query(
            self.query_nodes(shapes_of(inputs), requested),
            due_ns - now_ns,
            now_ns,
            POLICIES[self.description.policy],
            Replanning(self.description.replanning),
        )
        return PipelineFrame(self, inputs, requested, query, agreement)

    def cached_runs(
        self, frame: Frame, inputs: Mapping[str, Value], labels: tuple[str, str]
    ) -> Sequence[CachedRun]:
        """As ``Servable``; a frame adds to them as its nodes end."""
        return cast(PipelineFrame, frame).cached

    def needed(self, requested: Sequence[str] | None) -> list[NodeDescription]:
        """The nodes that the requested outputs need, in order; None: all outputs."""
        requested = list(self.description.outputs) if requested is None else requested
        needed = {self.description.outputs[name].node for name in requested}
        order: list[NodeDescription] = []
        for node in reversed(self.description.nodes):
            if node.name in needed:
                order.insert(0, node)
                needed |= set(node.after)
        return order

    def query_nodes(
        self, shapes: Shapes, requested: Sequence[str] | None = None
    ) -> tuple[QueryNode, ...]:
        """What the requested outputs need, with what each variant is expected to take now: whole
        runs with the attempt at an early answer.
        """
        nodes = []
        for node in self.needed(requested):
            networks = self.nodes[node.name]
            early_ns = 0 if networks.early is None else networks.early.expect_ns(shapes)
            variants = []
            for each in node.variants:
                network = networks.variants[each.name]
                full_ns = early_ns + network.expect_ns(shapes)
                usual_ns = network.usual.expect_ns(shapes)
                variants.append(NetworkVariant(each.name, each.accuracy, full_ns, usual_ns))
            nodes.append(QueryNode(node.name, tuple(variants)))
        return tuple(nodes)


def _check_names(kind: str, given: Sequence[str] | Mapping[str, Value], known: Mapping) -> None:
    for name in given:
        if name not in known:
            raise InvalidRequestError(
                f"the pipeline has no {kind} '{name}'; its {kind}s are {list(known)}"
            )


def assemble(
    description: PipelineDescription,
    sessions: Mapping[Path, Session],
    labels: tuple[str, str],
    started_ns: int,
) -> PipelineSession:
    """The pipeline of loaded networks, not tried yet; ``labels``: name and version for counters.

    Raises InvalidModelError where the networks do not fit together.
    """
    signatures = {path: signature_of(session) for path, session in sessions.items()}
    signature = check_networks(description, signatures)
    nodes = {}
    for node in description.nodes:
        networks = [PipelineNetwork(words, sessions[path]) for words, path in node.networks]
        early = None if node.early_answer is None else networks.pop(0)
        names = (variant.name for variant in node.variants)
        nodes[node.name] = NodeNetworks(node, dict(zip(names, networks, strict=True)), early)
    return PipelineSession(description, signature, nodes, time.monotonic_ns() - started_ns, labels)


def signature_of(session: Session) -> NetworkSignature:
    """Inputs and outputs of a loaded network."""

    def kinds(variables: Sequence[Variable]) -> dict[str, TensorType]:
        found = {}
        for variable in variables:
            shape = variable.type.shape
            if shape is not None:
                shape = tuple(size if isinstance(size, int) else None for size in shape)
            found[variable.name] = TensorType(variable.type.dtype, shape, variable.optional)
        return found

    return NetworkSignature(kinds(session.inputs), kinds(session.outputs))
