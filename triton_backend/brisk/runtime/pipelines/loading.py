"""A pipeline in memory: its nodes' networks, each a session shared with ordinary entries; put
together when the last one is there, and tried.

The trial run tells what each network takes, before any request. It runs on the worker's main
thread, because frames of a session that serves already must not overlap, a quantum at a time
between two looks at the sockets, and never beside a real-time run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from brisk.errors import BriskError, InternalError
from brisk.graph.files.element_types import dtype_of_name
from brisk.graph.program import Variable
from brisk.pipelines import (
    NetworkSignature,
    NodeSource,
    PipelineDescription,
    TensorType,
    check_networks,
)
from brisk.runtime.models.entry import LoadOutcome, LoadState, SessionEntry
from brisk.runtime.pipelines.latency import Shapes
from brisk.runtime.pipelines.networks import NetworkRun, NodeNetworks, PipelineNetwork, shapes_of
from brisk.runtime.pipelines.session import PipelineSession
from brisk.runtime.sessions.session import Session
from brisk.segments.values import Value

RUNS = 4
"""The trial runs of each network; the first one, which warms caches, does not count."""

WHOLE_MODEL = 1.0
"""The agreement asked of networks, so that learned caches answer nothing."""

LONG_RUN_NS = 300_000_000
"""A network that takes longer is run once only."""

QUANTUM_NS = 1_000_000


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
    def kinds(variables: Sequence[Variable]) -> dict[str, TensorType]:
        types = {}
        for variable in variables:
            shape = variable.type.shape
            if shape is not None:
                shape = tuple(size if isinstance(size, int) else None for size in shape)
            types[variable.name] = TensorType(variable.type.dtype, shape, variable.optional)
        return types

    return NetworkSignature(kinds(session.inputs), kinds(session.outputs))


class PipelineLoads:
    """Loads of pipelines, in the worker's main thread; ``tell`` takes their outcomes."""

    def __init__(self, tell: Callable[[LoadOutcome], None]) -> None:
        self._tell = tell
        self._waiting: list[SessionEntry] = []
        """The pipelines that wait for their networks."""
        self.tried: deque[tuple[SessionEntry, PipelineSession, Iterator[None]]] = deque()
        """One after the other."""

    def add(self, entry: SessionEntry) -> None:
        self._waiting.append(entry)
        self.assemble()

    def drop(self, entry: SessionEntry) -> None:
        """Nobody waits for it any more; an outcome that is on its way finds nobody."""
        self._waiting = [each for each in self._waiting if each is not entry]
        self.tried = deque(each for each in self.tried if each[0] is not entry)

    def assemble(self) -> None:
        """Have the pipelines tried whose networks are all there; fail those that miss one."""
        for entry in list(self._waiting):
            sessions = {
                path: network.session
                for path, network in entry.networks.items()
                if isinstance(network.session, Session) and network.state >= LoadState.LOADED
            }
            has_failed = any(network.error for network in entry.networks.values())
            if len(sessions) < len(entry.networks) and not has_failed:
                continue
            self._waiting.remove(entry)
            assert entry.pipeline is not None
            try:
                for words, path in entry.pipeline.networks:
                    if (error := entry.networks[path].error) is not None:
                        raise type(error)(f"{words}: {error}")
                session = assemble(entry.pipeline, sessions, entry.labels, entry.asked_ns)
            except BriskError as error:
                self._tell(LoadOutcome(entry, None, error))
            else:
                self.tried.append((entry, session, try_pipeline(session)))

    def advance(self) -> None:
        """Run segments of a trial for a quantum; tell the outcome of one that has ended."""
        until_ns = time.monotonic_ns() + QUANTUM_NS
        while self.tried and time.monotonic_ns() < until_ns:
            entry, session, segments = self.tried[0]
            try:
                next(segments)
                continue
            except StopIteration:
                outcome = LoadOutcome(entry, session, None)
            except BriskError as error:
                outcome = LoadOutcome(entry, None, error)
            except Exception as error:  # noqa: BLE001  # the askers must hear of it, whatever it is
                text = f"the trial run failed: {type(error).__name__}: {error}"
                outcome = LoadOutcome(entry, None, InternalError(text))
            self.tried.popleft()
            self._tell(outcome)


def try_pipeline(session: PipelineSession) -> Iterator[None]:
    """Run every network of every node; yields after each segment.

    Inputs are zeros of the entry's ``trial_shapes``, else of the networks' own shapes with 1 for
    each dynamic size. A node reads what the most accurate variant of an earlier one made. Raises
    the errors of the networks, with the shapes that were tried.
    """
    shapes = session.description.trial_shapes
    inputs = {
        name: _zeros(kind, shapes.get(name)) for name, kind in session.signature.inputs.items()
    }
    values = {NodeSource(None, name): value for name, value in inputs.items()}
    for node in session.nodes.values():
        try:
            yield from _try_node(node, values, shapes_of(inputs))
        except BriskError as error:
            tried = ", ".join(f"'{name}' {list(value.shape)}" for name, value in inputs.items())
            raise type(error)(
                f"{error}; that was the trial run, with zeros as {tried}; trial_shapes in the "
                "entry's file can say others"
            ) from error


def _try_node(
    node: NodeNetworks, values: dict[NodeSource, Value], shapes: Shapes
) -> Iterator[None]:
    inputs = {tensor: values[s] for tensor, s in node.description.inputs.items()}
    networks = list(node.variants.values()) + ([node.early] if node.early else [])
    best = max(node.description.variants, key=lambda variant: variant.accuracy).name
    for network in networks:
        outputs = [variable.name for variable in network.session.outputs]
        for number in range(RUNS):
            run = NetworkRun(network, inputs, outputs, shapes, WHOLE_MODEL)
            while not run.step():
                yield
            if network.expect_ns(shapes) > LONG_RUN_NS:
                break
            if number == 0:
                network.profile.forget()
        if network is node.variants[best]:
            for tensor, value in run.frame.results().items():
                values[NodeSource(node.description.name, tensor)] = value


def _zeros(kind: TensorType, shape: tuple[int, ...] | None) -> Value:
    sizes = shape or tuple(size or 1 for size in kind.shape or ())
    if kind.element == "string":
        return np.full(sizes, "", object)
    return np.zeros(sizes, dtype_of_name(kind.element or "float32"))
