"""Captured runs, launched whole and in chunks, on a stand-in for the driver."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brisk.gpu.driver import Context, CudaError, DeviceMemory, Driver, Stream
from brisk.gpu.graphs import Graph, capturing, chunks, in_order
from support.runtime.fake_driver import fake_driver

VALUES = 6


@pytest.fixture
def context() -> Iterator[Context]:
    context = Context(Driver(fake_driver()))
    yield context
    context.close()


class Copies:
    """A run of as many copies as there are values, each of one value to its place."""

    def __init__(self, context: Context) -> None:
        self.stream: Stream = context.stream(-5)
        self.memory: list[DeviceMemory] = [context.allocate(4) for _ in range(VALUES)]
        self.values = np.arange(1, VALUES + 1, dtype=np.int32)
        self._driver = context.driver

    def capture(self) -> Graph:
        with capturing(self._driver, self.stream) as capture:
            for index, memory in enumerate(self.memory):
                self.stream.to_device(memory, self.values[index:].ctypes.data, 4)
        return capture[0]

    def clear(self) -> None:
        for memory in self.memory:
            self.stream.to_device(memory, np.zeros(1, np.int32).ctypes.data, 4)

    def written(self) -> list[int]:
        values = np.zeros(VALUES, np.int32)
        for index, memory in enumerate(self.memory):
            self.stream.to_host(values[index:].ctypes.data, memory, 4)
        self.stream.synchronise()
        return values.tolist()

    def close(self) -> None:
        for each in (*self.memory, self.stream):
            each.close()


@pytest.fixture
def copies(context: Context) -> Iterator[Copies]:
    copies = Copies(context)
    copies.clear()
    yield copies
    copies.close()


def alive(kinds: str) -> list[int]:
    return [ctypes.CDLL(fake_driver()).fake_alive(ord(kind)) for kind in kinds]


def test_what_is_captured_is_done_by_the_launch_alone(copies: Copies) -> None:
    graph = copies.capture()
    assert copies.written() == [0] * VALUES
    assert graph.kinds() == {"copy": VALUES}
    whole = graph.executable()
    graph.close()
    whole.launch(copies.stream)
    assert copies.written() == [1, 2, 3, 4, 5, 6]
    whole.close()
    assert alive("GXN") == [0, 0, 0]


def test_chunks_do_their_own_part_and_all_of_them_the_whole(copies: Copies) -> None:
    graph = copies.capture()
    first, last = graph.executable(0, 2), graph.executable(2, VALUES)
    last.launch(copies.stream)
    assert copies.written() == [0, 0, 3, 4, 5, 6]
    copies.clear()
    first.launch(copies.stream)
    assert copies.written() == [1, 2, 0, 0, 0, 0]
    last.launch(copies.stream)
    assert copies.written() == [1, 2, 3, 4, 5, 6]
    for each in (first, last, graph):
        each.close()
    assert alive("GXN") == [0, 0, 0]


def test_a_chunk_that_cannot_be_made_leaves_nothing_behind(copies: Copies) -> None:
    graph = copies.capture()
    ctypes.CDLL(fake_driver()).fake_fail(b"cuGraphInstantiateWithFlags", 2)
    with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
        graph.executable(0, 2)
    with pytest.raises(ValueError, match="nodes 3 to 3 of a graph of 6"):
        graph.executable(3, 3)
    graph.close()
    assert alive("GXN") == [0, 0, 0]


def test_a_capture_that_fails_leaves_the_stream_as_it_was(
    context: Context, copies: Copies
) -> None:
    with (
        pytest.raises(CudaError, match=r"cuStreamSynchronize.*\(900\)"),
        capturing(context.driver, copies.stream),
    ):
        copies.stream.synchronise()
    copies.stream.synchronise()
    graph = copies.capture()
    graph.close()


def test_kernels_keep_the_priority_of_the_stream_they_were_captured_on(context: Context) -> None:
    module, stream = context.module(b"two kernels"), context.stream(-5)
    with capturing(context.driver, stream) as capture:
        module.launch("spin", stream, 1, 1, [ctypes.c_uint64(0)])
    assert capture[0].priority(0) == -5
    for each in (capture[0], stream, module):
        each.close()


@given(st.permutations(range(8)), st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_each_node_comes_behind_those_it_waits_for(
    nodes: Sequence[int], pairs: set[tuple[int, int]]
) -> None:
    edges = [(before, behind) for before, behind in pairs if before < behind]
    order = in_order(nodes, edges)
    assert sorted(order) == list(range(8))
    assert all(order.index(before) < order.index(behind) for before, behind in edges)


def test_nodes_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        in_order([1, 2], [(1, 2), (2, 1)])


@given(st.lists(st.floats(0, 300), max_size=40), st.floats(1, 200))
def test_chunks_hold_all_nodes_in_order_and_no_more_time_than_they_may(
    times: list[float], most: float
) -> None:
    parts = chunks(times, most)
    assert [each for first, end in parts for each in range(first, end)] == list(range(len(times)))
    for first, end in parts:
        assert sum(times[first:end]) <= most + 1e-6 or end - first == 1
    for (first, _), (_, end) in itertools.pairwise(parts):
        assert sum(times[first:end]) > most - 1e-6, "two that would fit into one"
