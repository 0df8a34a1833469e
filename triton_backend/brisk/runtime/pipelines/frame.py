"""One request of a pipeline: it steps through its nodes' frames, layer by layer.

To the worker it is a frame like any other: parked, resumed, cancelled and late at every layer
boundary. Between two nodes the query is planned anew. Its networks are sessions shared with
others; what they take is remembered by the shapes of requests.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from brisk import telemetry
from brisk.errors import BriskError, InternalError
from brisk.pipelines import NodeDescription, NodeSource
from brisk.pipelines.query import Query
from brisk.runtime.early_exit.audits import CachedRun
from brisk.runtime.models.session import Session
from brisk.runtime.pipelines.latency import LatencyProfile, Shapes
from brisk.runtime.worker.device import synchronise
from brisk.segments.values import Value
from brisk.telemetry import metrics

if TYPE_CHECKING:
    from brisk.exits.serving.frame import ExitingFrame
    from brisk.runtime.pipelines.loading import PipelineSession


def shapes_of(inputs: Mapping[str, Value]) -> Shapes:
    """The kind of a request, by which latencies are remembered."""
    return tuple(value.shape for value in inputs.values())


@dataclass(frozen=True, slots=True)
class PipelineNetwork:
    """A node's network with what it took; ``words`` name it in errors.

    ``profile``: of its whole runs. ``usual``: where early answers may come, of all runs in which
    it was the node's variant, attempts at an early answer included.
    """

    words: str
    session: Session
    profile: LatencyProfile = field(default_factory=LatencyProfile)
    usual: LatencyProfile = field(default_factory=LatencyProfile)

    def expect_ns(self, shapes: Shapes) -> int:
        """Precondition: it has been tried."""
        expected_ns = self.profile.expect_ns(shapes)
        assert expected_ns is not None, f"{self.words}: it was never tried"
        return expected_ns

    def named(self, error: BriskError) -> BriskError:
        """``error`` with its name before the text."""
        return type(error)(f"{self.words}: {error}")


@dataclass(frozen=True, slots=True)
class NodeNetworks:
    description: NodeDescription
    variants: Mapping[str, PipelineNetwork]
    early: PipelineNetwork | None


class NetworkRun:
    """One run of one network, timed: its steps only, not the time it is parked."""

    def __init__(
        self,
        network: PipelineNetwork,
        inputs: Mapping[str, Value],
        outputs: Sequence[str],
        shapes: Shapes,
        agreement: float | None = None,
    ) -> None:
        """``shapes``: of the request. ``agreement``: as ``Session.start`` takes it.

        Raises the errors of the network's frame, with its name before their text.
        """
        self.network = network
        self.inputs = inputs
        self.spent_ns = 0
        self._shapes = shapes
        try:
            self.frame = network.session.start(inputs, outputs, agreement)
        except BriskError as error:
            raise network.named(error) from error
        self.early = cast("ExitingFrame", self.frame) if self.frame.can_answer_early else None
        """Its frame, where learned caches may answer."""

    @property
    def is_all_early(self) -> bool:
        early = self.early
        return early is not None and all(one.exit_index is not None for one in early.answers)

    def step(self) -> bool:
        """Run a layer; True after the last one, when its time has been learned.

        A run that a learned cache has shortened says nothing of a whole one.
        """
        begun_ns = time.monotonic_ns()
        try:
            is_over = self.frame.step()
        except BriskError as error:
            raise self.network.named(error) from error
        if is_over:
            synchronise()
        self.spent_ns += time.monotonic_ns() - begun_ns
        if is_over and (self.early is None or not self.early.has_early_answers):
            self.network.profile.learn(self._shapes, self.spent_ns)
        return is_over


class PipelineFrame:
    """Runs the nodes one after the other; belongs to one thread.

    Raises as a Frame does, from the constructor and from ``step``. Values pass from node to node
    as they are, and are freed when the last node that reads them has begun.
    """

    can_answer_early = False

    def __init__(
        self,
        session: PipelineSession,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        query: Query,
        agreement: float | None = None,
    ) -> None:
        """``inputs`` of the request, checked; ``query`` plans the nodes that ``requested`` needs.

        ``agreement``: of its networks' learned caches with the whole networks; None for what they
        promise.
        """
        self._session = session
        self._agreement = agreement
        self._left = deque(session.nodes[node.name] for node in query.left)
        """Nodes that have not ended, the present one first."""
        self._outputs = {name: session.description.outputs[name] for name in requested}
        self._query = query
        self._shapes = shapes_of(inputs)
        self._values = {NodeSource(None, name): value for name, value in inputs.items()}
        sources = [s for node in self._left for s in node.description.inputs.values()]
        self._reads = Counter([*sources, *self._outputs.values()])
        self._done = 0
        self._run: NetworkRun | None = None
        self._variant = ""
        self._spent_ns = 0
        self.taken: dict[str, tuple[str, bool]] = {}
        """By node: the variant chosen, and whether it, or the early answer, answered early."""
        self.cached: list[CachedRun] = []
        """Finished runs of networks with learned caches."""

    @property
    def position(self) -> int:
        return self._done + (0 if self._run is None else self._run.frame.position)

    @property
    def upcoming(self) -> str:
        """The next layer in words, for traces: its node's name before it."""
        if self.is_finished:
            return ""
        layer = "planned" if self._run is None else self._run.frame.upcoming
        return f"{self._left[0].description.name}: {layer}"

    @property
    def is_finished(self) -> bool:
        return not self._left

    def step(self) -> bool:
        """Run one layer of the node that is due; True where the last node is finished."""
        if self.is_finished:
            return True
        run = self._run or self._begin(self._left[0])
        if run.step():
            self._finish(self._left[0], run)
        return self.is_finished

    def results(self) -> dict[str, Value]:
        """The requested outputs by name. Precondition: the job is finished."""
        if not self.is_finished:
            raise InternalError(f"results were asked for {len(self._left)} nodes too early")
        return {name: self._values[source] for name, source in self._outputs.items()}

    def _begin(self, node: NodeNetworks) -> NetworkRun:
        self._variant = self._query.begin(time.monotonic_ns()).variant.name
        self._spent_ns = 0
        inputs = {tensor: self._take(s) for tensor, s in node.description.inputs.items()}
        return self._start(node, node.early or node.variants[self._variant], inputs)

    def _take(self, source: NodeSource) -> Value:
        """The value, forgotten if nothing behind reads it."""
        self._reads[source] -= 1
        return self._values[source] if self._reads[source] else self._values.pop(source)

    def _start(
        self, node: NodeNetworks, network: PipelineNetwork, inputs: Mapping[str, Value]
    ) -> NetworkRun:
        wanted = [s.tensor for s, count in self._reads.items() if s.node == node.description.name]
        early = node.description.early_answer
        if network is node.early and early is not None and early.confidence not in wanted:
            wanted.append(early.confidence)
        self._run = NetworkRun(network, inputs, wanted, self._shapes, self._agreement)
        return self._run

    def _finish(self, node: NodeNetworks, run: NetworkRun) -> None:
        """A network has ended, and the node with it unless an early answer is not good enough."""
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
        result = "kept" if time.monotonic_ns() <= self._query.due_ns else "missed"
        telemetry.count(metrics.PIPELINE_OBJECTIVES, (*self._session.labels, result))


def is_confident(probabilities: Value, at_least: float) -> bool:
    """Whether every row, along the last axis, has a probability of ``at_least``.

    A NaN is not confident, and an answer without rows is: there is nothing to doubt.
    """
    if probabilities.dtype.kind == "O" or probabilities.ndim == 0:
        return False
    if not probabilities.size:
        return True
    return bool(np.all(probabilities.max(-1) >= at_least))
