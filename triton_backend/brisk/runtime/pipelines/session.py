"""A pipeline that answers requests, and one request of it, which steps through its nodes' frames.

To the worker a pipeline is a session and its runs are frames like any other: parked, resumed,
cancelled and timed out at every segment boundary. Between two nodes the query is planned anew.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from brisk import telemetry
from brisk.errors import InternalError, InvalidRequestError, counted
from brisk.pipelines import NetworkSignature, NodeDescription, NodeSource, PipelineDescription
from brisk.pipelines.query import POLICIES, NetworkVariant, Query, QueryNode, Replanning
from brisk.runtime.pipelines.latency import Shapes
from brisk.runtime.pipelines.networks import (
    NetworkRun,
    NodeNetworks,
    PipelineNetwork,
    shapes_of,
)
from brisk.runtime.sessions.session import CachedRun, Due, Frame, Servable
from brisk.segments.values import Value
from brisk.telemetry import metrics


@dataclass(slots=True, eq=False)
class PipelineSession(Servable):
    """The counterpart of a Session for a pipeline's bindings.

    ``signature``: the pipeline's inputs and outputs. Used by the worker's main thread alone.
    """

    description: PipelineDescription
    signature: NetworkSignature
    nodes: Mapping[str, NodeNetworks]
    load_ns: int
    labels: tuple[str, str]
    threads: int = 1
    """The threads of its networks' sessions."""
    summary: str = field(init=False)
    has_steady_runs = False  # they are as long as their time allows

    def __post_init__(self) -> None:
        counts = ", ".join(f"{n} ×{len(node.variants)}" for n, node in self.nodes.items())
        milliseconds = self.load_ns / 1e6
        self.summary = (
            f"pipeline of {counted(len(self.nodes), 'node')} ({counts}) in {milliseconds:.0f} ms"
        )

    @property
    def awaits_load(self) -> bool:
        """Whether a run may be waiting for a segment of one of its networks to be loaded."""
        networks = (network for node in self.nodes.values() for network in node.networks)
        return any(network.session.awaits_load for network in networks)

    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
        dues: Sequence[Due] = (),
    ) -> PipelineFrame:
        """Return a new frame (see ``Servable``).

        The plan is for the request that is due first, by its own time-out or else by the entry's
        objective. Raises InvalidRequestError if names do not fit the pipeline.
        """
        for kind, names, declared in (
            ("input", list(inputs), list(self.signature.inputs)),
            ("output", list(requested), list(self.signature.outputs)),
        ):
            for name in names:
                if name not in declared:
                    raise InvalidRequestError(
                        f"the pipeline has no {kind} '{name}'; its {kind}s are {declared}"
                    )
        for name in self.signature.inputs:
            if name not in inputs:
                raise InvalidRequestError(f"input '{name}' of the pipeline is missing")
        objective_ns = self.description.objective_ns
        due = [
            (
                each.arrival_ns + objective_ns if each.deadline_ns is None else each.deadline_ns,
                each.requests,
            )
            for each in dues
        ]
        now_ns = time.monotonic_ns()
        query = Query(
            self.query_nodes(shapes_of(inputs), requested),
            min(due)[0] - now_ns,
            now_ns,
            POLICIES[self.description.policy],
            Replanning(self.description.replanning),
        )
        return PipelineFrame(self, inputs, requested, query, agreement, due)

    def cached_runs(
        self,
        frame: Frame,
        inputs: Mapping[str, Value],
        labels: tuple[str, str],
        agreement: float | None = None,
    ) -> Sequence[CachedRun]:
        """Return the frame's runs with learned caches (see ``Servable``). The frame adds to them
        as its nodes end."""
        return frame.cached if isinstance(frame, PipelineFrame) else ()

    def needed(self, requested: Sequence[str] | None) -> list[NodeDescription]:
        """Return the nodes that the requested outputs need, in order; None: all outputs."""
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
        """Return the nodes that the requested outputs need, with the duration expected now of each
        variant's whole run, including the attempt at an early answer.
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


class PipelineFrame:
    """One request's run of the nodes, one after the other. Belongs to one thread.

    The constructor and ``step`` raise what a Frame raises. Values pass from node to node as they
    are, and are freed when the last node that reads them has begun.
    """

    early = None
    """None: no learned caches answer rows of this frame."""

    def __init__(
        self,
        session: PipelineSession,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        query: Query,
        agreement: float | None = None,
        due: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Begin a request. Precondition: ``inputs`` are checked. ``query`` plans the nodes that
        ``requested`` needs.

        ``agreement``: how often early answers of its networks must be the whole networks' own;
        None: as they promise. ``due``: times, and how many of the requests are due then.
        """
        self._session = session
        self._agreement = agreement
        self._left = deque(session.nodes[node.name] for node in query.left)
        """Nodes that have not ended, the present one first."""
        self._outputs = {name: session.description.outputs[name] for name in requested}
        self._query = query
        self._due = due
        self._shapes = shapes_of(inputs)
        self._values = {NodeSource(None, name): value for name, value in inputs.items()}
        sources = [s for node in self._left for s in node.description.inputs.values()]
        self._reads = Counter([*sources, *self._outputs.values()])
        self._done = 0
        self._run: NetworkRun | None = None
        self._variant = ""
        self._spent_ns = 0
        self.taken: dict[str, tuple[str, bool]] = {}
        """The variant chosen for each node, and whether the node answered early, by node."""
        self.cached: list[CachedRun] = []
        """Finished runs of networks with learned caches."""

    @property
    def position(self) -> int:
        return self._done + (0 if self._run is None else self._run.frame.position)

    @property
    def upcoming(self) -> str:
        """The next segment in words, for traces: its node's name before it."""
        if self.is_finished:
            return ""
        segment = "planned" if self._run is None else self._run.frame.upcoming
        return f"{self._left[0].description.name}: {segment}"

    @property
    def is_finished(self) -> bool:
        return not self._left

    def step(self) -> bool:
        """Run one segment of the current node; return True if the last node is finished."""
        if self.is_finished:
            return True
        run = self._run or self._begin(self._left[0])
        if run.step():
            self._finish(self._left[0], run)
        return self.is_finished

    def results(self) -> dict[str, Value]:
        """Return the requested outputs by name. Precondition: the frame is finished."""
        if not self.is_finished:
            raise InternalError(f"results were asked for {len(self._left)} nodes too early")
        return {name: self._values[source] for name, source in self._outputs.items()}

    def _begin(self, node: NodeNetworks) -> NetworkRun:
        self._variant = self._query.begin(time.monotonic_ns()).variant.name
        self._spent_ns = 0
        inputs = {tensor: self._take(s) for tensor, s in node.description.inputs.items()}
        return self._start(node, node.early or node.variants[self._variant], inputs)

    def _take(self, source: NodeSource) -> Value:
        """Return the value of ``source``; forget it if no later node or output reads it."""
        self._reads[source] -= 1
        return self._values[source] if self._reads[source] else self._values.pop(source)

    def _start(
        self, node: NodeNetworks, network: PipelineNetwork, inputs: Mapping[str, Value]
    ) -> NetworkRun:
        outputs = [s.tensor for s, count in self._reads.items() if s.node == node.description.name]
        early = node.description.early_answer
        if network is node.early and early is not None and early.confidence not in outputs:
            outputs.append(early.confidence)
        self._run = NetworkRun(network, inputs, outputs, self._shapes, self._agreement)
        return self._run

    def _finish(self, node: NodeNetworks, run: NetworkRun) -> None:
        """Handle the end of a network's run: the node ends with it, unless the run was an early
        answer that is not confident enough."""
        results = run.frame.results()
        self._done += run.frame.position
        self._spent_ns += run.spent_ns
        self._run = None
        name, early = node.description.name, node.description.early_answer
        if run.early is not None:
            pipeline, version = self._session.labels
            labels = (f"{pipeline}:{name}", version)
            self.cached.append(CachedRun(run.network.session, run.early, run.inputs, labels))
        is_early = run.is_all_early
        if run.network is node.early and early is not None:
            is_early = is_confident(results[early.confidence], early.at_least)
            if not is_early:
                self._start(node, node.variants[self._variant], run.inputs)
                return
        self.taken[name] = (self._variant, is_early)
        for variant, network in node.variants.items():
            if variant != self._variant:
                network.profile.pass_by(self._shapes)
                network.usual.pass_by(self._shapes)
        if node.early is not None or run.early is not None:
            node.variants[self._variant].usual.learn(self._shapes, self._spent_ns)
        for tensor, value in results.items():
            if self._reads[NodeSource(name, tensor)]:
                self._values[NodeSource(name, tensor)] = value
        self._left.popleft()
        if self.is_finished:
            self._count()

    def _count(self) -> None:
        for node, (variant, was_early) in self.taken.items():
            how = "early" if was_early else "full"
            telemetry.count(metrics.PIPELINE_NODES, (*self._session.labels, node, variant, how))
        now_ns = time.monotonic_ns()
        for due_ns, requests in self._due:
            result = "kept" if now_ns <= due_ns else "missed"
            telemetry.count(metrics.PIPELINE_OBJECTIVES, (*self._session.labels, result), requests)


def is_confident(probabilities: Value, at_least: float) -> bool:
    """Whether every row, along the last axis, has a probability of ``at_least``.

    A NaN is not confident; an answer without rows is.
    """
    if probabilities.dtype.kind == "O" or probabilities.ndim == 0:
        return False
    if not probabilities.size:
        return True
    return bool(np.all(probabilities.max(-1) >= at_least))
