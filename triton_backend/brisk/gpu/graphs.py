"""Runs captured once and launched again, whole or in chunks (REEF, section 4: REEF-N).

What ONNX Runtime issues to a stream for one run is captured as a graph of the driver's: kernels,
copies and their order. Launched, it is the run again, on the same memory, without any of the work
on the processor that issuing it took. A graph cannot be stopped, so one that may be preempted is
made into several, *chunks* of consecutive nodes: what is given up is what was not launched.

A chunk is a clone of the graph without all other nodes, so nothing has to be known of a kernel's
parameters.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from ctypes import c_int, c_size_t, c_void_p
from enum import IntEnum

from brisk.errors import InternalError
from brisk.gpu.driver import CudaError, Driver, Stream

_OWN_THREAD = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: calls of other threads go on as ever meanwhile."""

_PRIORITY = 8
"""CU_LAUNCH_ATTRIBUTE_PRIORITY."""

_ATTRIBUTE_BYTES = 64


class NodeKind(IntEnum):
    """CUgraphNodeType."""

    KERNEL = 0
    COPY = 1
    FILL = 2
    HOST = 3
    GRAPH = 4
    EMPTY = 5


class Graph:
    """What was captured; of the thread that captured it, or of one at a time."""

    def __init__(self, driver: Driver, handle: int) -> None:
        self.driver = driver
        self._handle = handle
        self.nodes = self._ordered()
        """Handles, in an order in which they can run."""

    def close(self) -> None:
        """Executables that were made of it stay."""
        if self._handle:
            handle, self._handle = self._handle, 0
            self.driver.call("cuGraphDestroy", handle)

    def kinds(self) -> dict[str, int]:
        """How many nodes there are, by kind."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            kind = self._kind(node)
            name = NodeKind(kind).name.lower() if kind in set(NodeKind) else f"kind {kind}"
            counts[name] = counts.get(name, 0) + 1
        return counts

    def priority(self, index: int) -> int | None:
        """Of the node's kernel; None where it is none."""
        if self._kind(self.nodes[index]) != NodeKind.KERNEL:
            return None
        value = (c_int * (_ATTRIBUTE_BYTES // ctypes.sizeof(c_int)))()
        self.driver.call("cuGraphKernelNodeGetAttribute", self.nodes[index], _PRIORITY, value)
        return int(value[0])

    def executable(self, first: int = 0, end: int | None = None) -> Executable:
        """Of the nodes from ``first`` up to ``end``; all if not given. Raises CudaError."""
        end = len(self.nodes) if end is None else end
        if not 0 <= first < end <= len(self.nodes):
            raise ValueError(f"nodes {first} to {end} of a graph of {len(self.nodes)}")
        if (first, end) == (0, len(self.nodes)):
            return Executable(self.driver, self._instantiate(self._handle))
        clone = self.driver.handle("cuGraphClone", self._handle)
        try:
            for node in (*self.nodes[:first], *self.nodes[end:]):
                other = self.driver.handle("cuGraphNodeFindInClone", node, clone)
                self.driver.call("cuGraphDestroyNode", other)
            return Executable(self.driver, self._instantiate(clone))
        finally:
            self.driver.call("cuGraphDestroy", clone)

    def _instantiate(self, handle: int) -> int:
        return self.driver.handle("cuGraphInstantiateWithFlags", handle, 0)

    def _kind(self, node: int) -> int:
        kind = c_int()
        self.driver.call("cuGraphNodeGetType", node, ctypes.byref(kind))
        return kind.value

    def _ordered(self) -> tuple[int, ...]:
        count = c_size_t()
        self.driver.call("cuGraphGetNodes", self._handle, None, ctypes.byref(count))
        nodes = (c_void_p * count.value)()
        self.driver.call("cuGraphGetNodes", self._handle, nodes, ctypes.byref(count))
        edges = c_size_t()
        self.driver.call("cuGraphGetEdges_v2", self._handle, None, None, None, ctypes.byref(edges))
        froms, tos = (c_void_p * edges.value)(), (c_void_p * edges.value)()
        data = (ctypes.c_uint64 * edges.value)()
        if edges.value:
            self.driver.call(
                "cuGraphGetEdges_v2", self._handle, froms, tos, data, ctypes.byref(edges)
            )
        return in_order(
            [node or 0 for node in nodes],
            [(before or 0, behind or 0) for before, behind in zip(froms, tos, strict=True)],
        )


class Executable:
    """A graph, or a chunk of one, that the device can be told to run."""

    def __init__(self, driver: Driver, handle: int) -> None:
        self.driver = driver
        self._handle = handle

    def close(self) -> None:
        if self._handle:
            handle, self._handle = self._handle, 0
            self.driver.call("cuGraphExecDestroy", handle)

    def upload(self, stream: Stream) -> None:
        """Bring it to the device, so that the first launch takes no longer than others."""
        self.driver.call("cuGraphUpload", self._handle, stream.handle)

    def launch(self, stream: Stream) -> None:
        """Behind what was issued to the stream before, and with its priority; returns at once."""
        self.driver.call("cuGraphLaunch", self._handle, stream.handle)


@contextlib.contextmanager
def capturing(driver: Driver, stream: Stream) -> Iterator[list[Graph]]:
    """What the calling thread issues to the stream while entered is not done but captured: the one
    graph of the list, when it is left.

    Raises CudaError where something was asked for that cannot be captured, such as waiting.
    """
    found: list[Graph] = []
    driver.call("cuStreamBeginCapture_v2", stream.handle, _OWN_THREAD)
    graph = c_void_p()
    try:
        yield found
    except BaseException:
        with contextlib.suppress(CudaError):  # the first error says what is wrong
            driver.call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
            if graph.value is not None:
                driver.call("cuGraphDestroy", graph)
        raise
    driver.call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
    if graph.value is None:
        raise InternalError("a capture ended without a graph")
    found.append(Graph(driver, graph.value))


def in_order(nodes: Sequence[int], edges: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The nodes so that each comes behind those with an edge to it; else as they are given.

    Raises ValueError where there is a circle, or an edge of a node that is not there.
    """
    waiting = dict.fromkeys(nodes, 0)
    behind: dict[int, list[int]] = {node: [] for node in nodes}
    for before, after in edges:
        if before not in waiting or after not in waiting:
            raise ValueError("an edge of a node that is not there")
        waiting[after] += 1
        behind[before].append(after)
    ready = [node for node in nodes if not waiting[node]]
    for node in ready:  # grows
        for after in behind[node]:
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    if len(ready) != len(waiting):
        raise ValueError("nodes that wait for each other")
    return tuple(ready)


def chunks(times_us: Sequence[float], most_us: float) -> list[tuple[int, int]]:
    """Consecutive nodes (first, end) whose times add up to at most ``most_us``, as few as can be;
    a node that takes longer is a chunk of its own.
    """
    found: list[tuple[int, int]] = []
    first, taken = 0, 0.0
    for index, time_us in enumerate(times_us):
        if index > first and taken + time_us > most_us:
            found.append((first, index))
            first, taken = index, 0.0
        taken += time_us
    if first < len(times_us):
        found.append((first, len(times_us)))
    return found
