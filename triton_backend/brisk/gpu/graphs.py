"""Runs captured once and launched again, whole or in chunks (REEF, section 4: REEF-N).

The work that ONNX Runtime issues to a stream for one run is captured as a graph of the driver's:
kernels, copies and their order. A launch of the graph repeats the run on the same memory, without
the processor's work of issuing it. A graph cannot be stopped, so one that may be preempted is
split into *chunks* of consecutive nodes: a preempted run loses what was not launched.

A chunk is a separate graph, into which nodes are copied with their captured parameters, so nothing
has to be known of a kernel's arguments. Nodes of other kinds than ``COPIED`` cannot be copied, so
a graph that has one runs as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import graphlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_int, c_size_t, c_void_p
from enum import IntEnum
from typing import Any

from brisk.errors import InternalError
from brisk.gpu.driver import CudaError, Driver, Stream

_OWN_THREAD = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: calls of other threads are not affected meanwhile."""

_PRIORITY = 8
"""CU_LAUNCH_ATTRIBUTE_PRIORITY."""

_ATTRIBUTE_BYTES = 64

_PARAMETER_BYTES = 256
"""The space for the parameters of a node; those of a kernel and a fill are opaque here."""

_MEMORY_TYPE = 2
"""CU_POINTER_ATTRIBUTE_MEMORY_TYPE."""


class MemoryKind(IntEnum):
    """The driver's kinds of memory (CUmemorytype)."""

    HOST = 1
    DEVICE = 2
    ARRAY = 3
    UNIFIED = 4


class _Place(ctypes.Structure):
    """One end of a copy."""

    x_bytes: int
    y: int
    z: int
    kind: int
    host: int | None
    device: int
    _fields_ = (
        ("x_bytes", c_size_t),
        ("y", c_size_t),
        ("z", c_size_t),
        ("level", c_size_t),
        ("kind", ctypes.c_uint),
        ("host", c_void_p),
        ("device", ctypes.c_uint64),
        ("array", c_void_p),
        ("reserved", c_void_p),
        ("pitch", c_size_t),
        ("height", c_size_t),
    )


class Copy(ctypes.Structure):
    """The driver's parameters of a copy (CUDA_MEMCPY3D)."""

    source: _Place
    target: _Place
    width_bytes: int
    height: int
    depth: int
    _fields_ = (
        ("source", _Place),
        ("target", _Place),
        ("width_bytes", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    )


class NodeKind(IntEnum):
    """The driver's kinds of graph nodes (CUgraphNodeType)."""

    KERNEL = 0
    COPY = 1
    FILL = 2
    HOST = 3
    GRAPH = 4
    EMPTY = 5
    ALLOCATE = 10
    FREE = 11


COPIED = frozenset({NodeKind.KERNEL, NodeKind.COPY, NodeKind.FILL, NodeKind.EMPTY})
"""The kinds of nodes that another graph can have, too."""


class Graph:
    """A captured graph. One thread at a time may use it."""

    def __init__(self, driver: Driver, handle: int) -> None:
        self.driver = driver
        self._handle = handle
        self._context = driver.handle("cuCtxGetCurrent")
        self._before: defaultdict[int, list[int]] = defaultdict(list)
        self.nodes = self._ordered()
        """The nodes' handles, in an order in which they can run."""

    def close(self) -> None:
        """Destroy the graph; executables that were made of it stay valid."""
        if self._handle:
            handle, self._handle = self._handle, 0
            self.driver.call("cuGraphDestroy", handle)

    def kinds(self) -> dict[str, int]:
        """Return the number of nodes by kind."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            kind = self._kind(node)
            name = NodeKind(kind).name.lower() if kind in set(NodeKind) else f"kind {kind}"
            counts[name] = counts.get(name, 0) + 1
        return counts

    def priority(self, index: int) -> int | None:
        """Return the priority of the node's kernel; None if the node is no kernel."""
        if self._kind(self.nodes[index]) != NodeKind.KERNEL:
            return None
        value = (c_int * (_ATTRIBUTE_BYTES // ctypes.sizeof(c_int)))()
        self.driver.call("cuGraphKernelNodeGetAttribute", self.nodes[index], _PRIORITY, value)
        return int(value[0])

    @property
    def can_be_cut(self) -> bool:
        return all(self._kind(node) in COPIED for node in self.nodes)

    def host_copies(self) -> dict[int, Copy]:
        """Return the copies that read memory of the process when they are launched, by node's
        number.

        The caller has to know what that memory holds then: ONNX Runtime reuses it.
        """
        copies = {}
        for index, node in enumerate(self.nodes):
            if self._kind(node) == NodeKind.COPY:
                copy = self._copy(node)
                if self._is_of_host(copy.source):
                    copies[index] = copy
        return copies

    def executable(
        self, first: int = 0, end: int | None = None, sources: Mapping[int, int] | None = None
    ) -> Executable:
        """Return an executable of the nodes from ``first`` up to ``end`` (None: to the last).

        ``sources``: addresses on the device that copies read instead of the process's memory, by
        node's number. Raises CudaError, and ValueError if the graph cannot be cut.
        """
        end = len(self.nodes) if end is None else end
        if not 0 <= first < end <= len(self.nodes):
            raise ValueError(f"nodes {first} to {end} of a graph of {len(self.nodes)}")
        if (first, end) == (0, len(self.nodes)) and not sources:
            return Executable(self.driver, self._instantiate(self._handle))
        chunk = self.driver.handle("cuGraphCreate", 0)
        try:
            copies: dict[int, int] = {}
            for index in range(first, end):
                node = self.nodes[index]
                before = [copies[each] for each in self._before[node] if each in copies]
                copies[node] = self._add(chunk, node, before, (sources or {}).get(index))
            return Executable(self.driver, self._instantiate(chunk))
        finally:
            self.driver.call("cuGraphDestroy", chunk)

    def _add(self, graph: int, node: int, before: Sequence[int], source: int | None) -> int:
        """Copy a node into another graph. Return its handle there."""
        call = self.driver.call
        behind = (c_void_p * len(before))(*before), len(before)
        parameters: Any = ctypes.create_string_buffer(_PARAMETER_BYTES)
        kind = self._kind(node)
        if kind == NodeKind.KERNEL:
            call("cuGraphKernelNodeGetParams_v2", node, parameters)
            handle = self.driver.handle("cuGraphAddKernelNode_v2", graph, *behind, parameters)
            call("cuGraphKernelNodeCopyAttributes", handle, node)
            return handle
        if kind == NodeKind.COPY:
            copy = self._copy(node)
            if source is not None:
                copy.source.kind, copy.source.device = MemoryKind.DEVICE, source
            return self.driver.handle(
                "cuGraphAddMemcpyNode", graph, *behind, ctypes.byref(copy), self._context
            )
        if kind == NodeKind.FILL:
            call("cuGraphMemsetNodeGetParams", node, parameters)
            return self.driver.handle(
                "cuGraphAddMemsetNode", graph, *behind, parameters, self._context
            )
        if kind == NodeKind.EMPTY:
            return self.driver.handle("cuGraphAddEmptyNode", graph, *behind)
        raise ValueError(f"a graph with {self.kinds()} cannot be cut")

    def _copy(self, node: int) -> Copy:
        parameters = Copy()
        self.driver.call("cuGraphMemcpyNodeGetParams", node, ctypes.byref(parameters))
        return parameters

    def _is_of_host(self, place: _Place) -> bool:
        if place.kind != MemoryKind.UNIFIED:
            return place.kind == MemoryKind.HOST
        kind = ctypes.c_uint()
        try:
            self.driver.call(
                "cuPointerGetAttribute", ctypes.byref(kind), _MEMORY_TYPE, place.device
            )
        except CudaError as error:
            if error.is_sticky:
                raise
            return True  # the driver does not know it
        return kind.value == MemoryKind.HOST

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
        pairs = [(one or 0, other or 0) for one, other in zip(froms, tos, strict=True)]
        for one, other in pairs:
            self._before[other].append(one)
        return in_order([node or 0 for node in nodes], pairs)


class Executable:
    """A graph, or a chunk of one, that can be launched on the device."""

    def __init__(self, driver: Driver, handle: int) -> None:
        self.driver = driver
        self._handle = handle

    def close(self) -> None:
        if self._handle:
            handle, self._handle = self._handle, 0
            self.driver.call("cuGraphExecDestroy", handle)

    def upload(self, stream: Stream) -> None:
        """Copy it to the device, so that the first launch takes no longer than others."""
        self.driver.call("cuGraphUpload", self._handle, stream.handle)

    def launch(self, stream: Stream) -> None:
        """Launch it on ``stream``, behind earlier work and with the stream's priority; returns
        at once."""
        self.driver.call("cuGraphLaunch", self._handle, stream.handle)


@contextlib.contextmanager
def capturing(driver: Driver, stream: Stream) -> Iterator[list[Graph]]:
    """Capture, instead of running, the work that the calling thread issues to the stream while
    entered. On exit the list holds the one graph.

    Raises CudaError if something cannot be captured, such as waiting.
    """
    graphs: list[Graph] = []
    driver.call("cuStreamBeginCapture_v2", stream.handle, _OWN_THREAD)
    graph = c_void_p()
    try:
        yield graphs
    except BaseException:
        with contextlib.suppress(CudaError):  # the first error says what is wrong
            driver.call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
            if graph.value is not None:
                driver.call("cuGraphDestroy", graph)
        raise
    driver.call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
    if graph.value is None:
        raise InternalError("a capture ended without a graph")
    graphs.append(Graph(driver, graph.value))


def in_order(nodes: Sequence[int], edges: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the nodes in topological order: each behind those with an edge to it.

    Nodes that are ready at the start keep their order. Raises ValueError if there is a cycle.
    """
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter(dict.fromkeys(nodes, ()))
    for before, after in edges:
        sorter.add(after, before)
    return tuple(sorter.static_order())


def chunks(times_us: Sequence[float], most_us: float) -> list[tuple[int, int]]:
    """Return as few runs of consecutive nodes (first, end) as can be whose times add up to at most
    ``most_us``; a node that takes longer is a chunk of its own."""
    spans: list[tuple[int, int]] = []
    first, total_us = 0, 0.0
    for index, time_us in enumerate(times_us):
        if index > first and total_us + time_us > most_us:
            spans.append((first, index))
            first, total_us = index, 0.0
        total_us += time_us
    if first < len(times_us):
        spans.append((first, len(times_us)))
    return spans
