"""One request of a pipeline: it steps through its nodes' frames, layer by layer.

To the worker it is a frame like any other: parked, resumed, cancelled and late at every layer
boundary. Between two nodes the query is planned anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from brisk.errors import InternalError
from brisk.pipelines import NodeSource
from brisk.planning import Query
from brisk.runtime.early_exit.audits import CachedRun
from brisk.runtime.pipelines.network import NetworkRun, NodeNetworks, PipelineNetwork, Signature
from brisk.segments.values import Value

Labels = tuple[str, str]


class PipelineFrame:
    """Runs the nodes one after the other; belongs to one thread.

    Raises as a Frame does, from the constructor and from ``step``. Values pass from node to node
    as they are, and are freed when the last node that reads them has begun.
    """

    can_answer_early = False

    __slots__ = (
        *("_agreement", "_clock_ns", "_done", "_inputs", "_is_early", "_labels", "_nodes"),
        *("_on_finish", "_outputs", "_place", "_query", "_reads", "_run", "_signature"),
        *("_spent_ns", "_values", "_variant", "cached", "taken"),
    )

    def __init__(
        self,
        nodes: Sequence[NodeNetworks],
        inputs: Mapping[str, Value],
        outputs: Mapping[str, NodeSource],
        query: Query,
        signature: Signature,
        clock_ns: Callable[[], int],
        on_finish: Callable[[PipelineFrame], None],
        labels: Labels,
        agreement: float | None = None,
    ) -> None:
        """``nodes`` in order; ``inputs`` of the request, checked; ``query`` plans ``nodes``.

        ``labels``: the pipeline's name and version. ``agreement``: of its networks' learned caches
        with the whole networks; None for what they promise.
        """
        self._labels = labels
        self._agreement = agreement
        self._nodes = nodes
        self._outputs = outputs
        self._query = query
        self._signature = signature
        self._clock_ns = clock_ns
        self._on_finish = on_finish
        self._values = {NodeSource(None, name): value for name, value in inputs.items()}
        sources = [s for node in nodes for s in node.description.inputs.values()]
        self._reads = Counter([*sources, *outputs.values()])
        self._place = 0
        self._done = 0
        self._run: NetworkRun | None = None
        self._is_early = False
        self._variant = ""
        self._spent_ns = 0
        self._inputs: dict[str, Value] = {}
        self.taken: dict[str, tuple[str, bool]] = {}
        """By node: the variant chosen, and whether it, or the early answer, answered early."""
        self.cached: list[CachedRun] = []
        """Finished runs of networks with learned caches."""

    @property
    def due_ns(self) -> int:
        """When the answer should be there."""
        return self._query.due_ns

    @property
    def position(self) -> int:
        """Layers done so far, of all nodes."""
        return self._done + (0 if self._run is None else self._run.frame.position)

    @property
    def upcoming(self) -> str:
        """The next layer in words, for traces: its node's name before it."""
        if self.is_finished:
            return ""
        name = self._nodes[self._place].description.name
        return f"{name}: {'planned' if self._run is None else self._run.frame.upcoming}"

    @property
    def is_finished(self) -> bool:
        return self._place == len(self._nodes)

    def step(self) -> bool:
        """Run one layer of the node that is due; True where the last node is finished."""
        if self.is_finished:
            return True
        if self._run is None:
            self._begin(self._nodes[self._place])
        assert self._run is not None
        if self._run.step():
            self._finish(self._nodes[self._place], self._run)
        return self.is_finished

    def results(self) -> dict[str, Value]:
        """The requested outputs by name. Precondition: the job is finished."""
        if not self.is_finished:
            raise InternalError(
                f"results were asked for after {self._place} of {len(self._nodes)} nodes"
            )
        return {name: self._values[source] for name, source in self._outputs.items()}

    def _begin(self, node: NodeNetworks) -> None:
        description = node.description
        self._variant = self._query.begin(description.name, self._clock_ns()).variant.name
        self._inputs = {
            tensor: self._take(source) for tensor, source in description.inputs.items()
        }
        self._is_early = node.early is not None
        self._spent_ns = 0
        self._start(node, node.early or node.variants[self._variant])

    def _take(self, source: NodeSource) -> Value:
        """The value, forgotten if nothing behind reads it."""
        self._reads[source] -= 1
        return self._values[source] if self._reads[source] else self._values.pop(source)

    def _start(self, node: NodeNetworks, network: PipelineNetwork) -> None:
        wanted = [s.tensor for s, count in self._reads.items() if s.node == node.description.name]
        early = node.description.early_answer
        if self._is_early and early is not None and early.confidence not in wanted:
            wanted.append(early.confidence)
        self._run = NetworkRun(
            network, self._inputs, wanted, self._signature, self._clock_ns, self._agreement
        )

    def _finish(self, node: NodeNetworks, run: NetworkRun) -> None:
        results = run.frame.results()
        self._done += run.frame.position
        self._spent_ns += run.spent_ns
        self._run = None
        name = node.description.name
        early_frame = run.early
        if early_frame is not None:
            pipeline, version = self._labels
            labels = (f"{pipeline}:{name}", version)
            self.cached.append(CachedRun(run.session, early_frame, run.inputs, labels))
        if self._is_early:
            self._is_early = False
            early = node.description.early_answer
            assert early is not None
            is_taken = is_confident(results[early.confidence], early.at_least)
            if not is_taken:
                self._start(node, node.variants[self._variant])
                return
            self.taken[name] = (self._variant, True)
        else:
            self.taken[name] = (self._variant, run.is_all_early)
        for other, network in node.variants.items():
            if other != self._variant:
                network.pass_by(self._signature)
        if node.early is not None or early_frame is not None:
            signature, usual = self._signature, node.variants[self._variant].usual
            usual.learn(signature.shapes, signature.size, self._spent_ns)
        self._inputs = {}
        self._query.finish(name, self._clock_ns())
        for tensor, value in results.items():
            if self._reads[NodeSource(name, tensor)]:
                self._values[NodeSource(name, tensor)] = value
        self._place += 1
        if self.is_finished:
            self._on_finish(self)


def is_confident(probabilities: Value, at_least: float) -> bool:
    """Whether every row, along the last axis, has a probability of ``at_least``.

    A NaN is not confident, and an answer without rows is: there is nothing to doubt.
    """
    if probabilities.dtype.kind == "O" or probabilities.ndim == 0:
        return False
    if not probabilities.size:
        return True
    return bool(np.all(probabilities.max(-1) >= at_least))
