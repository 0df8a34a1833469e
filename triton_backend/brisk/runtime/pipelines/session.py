"""A pipeline, loaded: its nodes' networks, each a session shared with ordinary entries."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from brisk.errors import InvalidRequestError
from brisk.pipelines import (
    NetworkSignature,
    NodeDescription,
    PipelineDescription,
    TensorType,
    check_networks,
)
from brisk.planning.query import POLICIES, NetworkVariant, Query, QueryNode, Replanning
from brisk.runtime.early_exit.audits import CachedRun
from brisk.runtime.models.session import Due, Frame, Servable, Session
from brisk.runtime.pipelines.frame import NodeNetworks, PipelineFrame, PipelineNetwork, Signature
from brisk.segments.values import Value


@dataclass(slots=True, eq=False)
class PipelineSession(Servable):
    """What a binding of a pipeline has where another one has a Session.

    ``signature`` is what it takes and gives. Used by the worker's main thread alone.
    """

    description: PipelineDescription
    signature: NetworkSignature
    nodes: Mapping[str, NodeNetworks]
    load_ns: int
    labels: tuple[str, str]
    threads: int = 1
    """Of its networks' sessions."""
    summary: str = field(init=False)
    has_steady_runs = False  # they are as long as their time allows

    def __post_init__(self) -> None:
        counts = ", ".join(f"{n} ×{len(node.variants)}" for n, node in self.nodes.items())
        milliseconds = self.load_ns / 1e6
        self.summary = f"pipeline of {len(self.nodes)} nodes ({counts}) in {milliseconds:.0f} ms"

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
            self.query_nodes(Signature.of(inputs), requested),
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
        self, signature: Signature, requested: Sequence[str] | None = None
    ) -> tuple[QueryNode, ...]:
        """What the requested outputs need, with what each variant is expected to take now."""
        networks = self.nodes
        return tuple(
            QueryNode(
                node.name,
                tuple(
                    NetworkVariant(
                        each.name,
                        each.accuracy,
                        self._expect_ns(node, each.name, signature),
                        networks[node.name].variants[each.name].expect_usually_ns(signature),
                    )
                    for each in node.variants
                ),
            )
            for node in self.needed(requested)
        )

    def _expect_ns(self, node: NodeDescription, variant: str, signature: Signature) -> int:
        """Without any early answer, but with the attempt at one."""
        networks = self.nodes[node.name]
        full_ns = networks.variants[variant].expect_ns(signature)
        return full_ns + (networks.early.expect_ns(signature) if networks.early else 0)


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
    nodes = {
        node.name: NodeNetworks(
            node,
            {
                variant.name: PipelineNetwork(
                    f"node '{node.name}', variant '{variant.name}'", sessions[variant.path]
                )
                for variant in node.variants
            },
            None
            if node.early_answer is None
            else PipelineNetwork(
                f"node '{node.name}', its early answer", sessions[node.early_answer.path]
            ),
        )
        for node in description.nodes
    }
    return PipelineSession(description, signature, nodes, time.monotonic_ns() - started_ns, labels)


def signature_of(session: Session) -> NetworkSignature:
    """Inputs and outputs of a loaded network."""

    def kind(dtype: str | None, shape: Sequence | None, is_optional: bool = False) -> TensorType:
        sizes = None if shape is None else tuple(s if isinstance(s, int) else None for s in shape)
        return TensorType(dtype, sizes, is_optional)

    return NetworkSignature(
        {
            variable.name: kind(variable.type.dtype, variable.type.shape, variable.optional)
            for variable in session.inputs
        },
        {
            variable.name: kind(variable.type.dtype, variable.type.shape)
            for variable in session.outputs
        },
    )
