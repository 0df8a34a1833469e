"""Calls of NVIDIA's driver, made to a stand-in that refuses what the driver would."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from brisk.errors import UnavailableError
from brisk.gpu.driver import Context, CudaError, Driver
from support.runtime.fake_driver import fake_driver


@pytest.fixture
def context() -> Iterator[Context]:
    context = Context(Driver(fake_driver()))
    yield context
    context.close()


def fake() -> ctypes.CDLL:
    return ctypes.CDLL(fake_driver())


def test_a_machine_without_a_driver_is_told_so() -> None:
    with pytest.raises(UnavailableError, match=r"driver is not here.*libnowhere"):
        Driver("libnowhere.so.1")


def test_a_driver_without_a_device_is_told_so() -> None:
    fake().fake_fail(b"cuInit", 100)
    with pytest.raises(UnavailableError, match=r"no device.*CUDA_ERROR_NO_DEVICE \(100\)"):
        Driver(fake_driver())


def test_a_device_that_is_not_there_is_named_with_how_many_are() -> None:
    with pytest.raises(UnavailableError, match="no device cuda:1; the driver sees 1"):
        Context(Driver(fake_driver()), 1)


def test_facts_are_those_of_the_device(context: Context) -> None:
    facts = context.facts
    assert (facts.name, facts.capability, facts.multiprocessors) == ("fake", (9, 0), 4)
    assert facts.priorities == (0, -5)
    assert context.memory() == (3 << 29, 1 << 31)
    assert context.driver.version == (13, 0)


def test_bytes_go_to_the_device_and_come_back(context: Context) -> None:
    sent = np.arange(1000, dtype=np.float32)
    received = np.zeros_like(sent)
    stream, memory = context.stream(), context.allocate(sent.nbytes)
    stream.to_device(memory, sent.ctypes.data, sent.nbytes)
    stream.to_host(received.ctypes.data, memory, sent.nbytes)
    stream.synchronise()
    np.testing.assert_array_equal(received, sent)
    memory.close()
    stream.close()


def test_what_is_closed_is_given_back_once(context: Context) -> None:
    def alive() -> list[int]:
        return [fake().fake_alive(ord(kind)) for kind in "SEM"]

    before = alive()
    with context.stream(-5) as stream, context.event(), context.allocate(10) as memory:
        assert alive() == [each + 1 for each in before]
    assert alive() == before
    stream.close()
    memory.close()


def test_pages_are_the_device_s_only_while_they_are_registered(context: Context) -> None:
    array = np.zeros(4096, np.uint8)
    with context.registered(array.ctypes.data, array.nbytes):
        assert fake().fake_alive(ord("R")) == 1
    assert fake().fake_alive(ord("R")) == 0


def test_events_tell_the_time_between_them(context: Context) -> None:
    with context.stream() as stream, context.event() as first, context.event() as last:
        module = context.module(b"two kernels")
        first.record(stream)
        module.launch("spin", stream, 1, 32, [ctypes.c_uint64(5_000_000)])
        last.record(stream)
        last.synchronise()
        assert first.is_done()
        assert last.is_done()
        assert last.ms_since(first) >= 5
        module.close()


def test_an_error_names_its_call_and_number_and_whether_the_process_must_end(
    context: Context,
) -> None:
    for number, name, is_sticky in (
        (700, "CUDA_ERROR_ILLEGAL_ADDRESS", True),
        (2, "CUDA_ERROR_OUT_OF_MEMORY", False),
        (712, "an error that it does not name", False),
    ):
        fake().fake_fail(b"cuMemAlloc_v2", number)
        with pytest.raises(CudaError, match=f"cuMemAlloc_v2 .*{name} .{number}.") as caught:
            context.allocate(10)
        assert (caught.value.number, caught.value.is_sticky) == (number, is_sticky)
    context.allocate(10).close()


@pytest.mark.parametrize("what", ["event", "stream"])
def test_what_is_ahead_is_not_done_and_what_failed_raises(context: Context, what: str) -> None:
    query = f"cu{what.capitalize()}Query"
    with getattr(context, what)() as work:
        assert work.is_done()
        fake().fake_fail(query.encode(), 600)
        assert not work.is_done()
        fake().fake_fail(query.encode(), 719)
        with pytest.raises(CudaError, match=query):
            work.is_done()


def test_a_function_that_an_old_driver_has_not_is_named(context: Context) -> None:
    with pytest.raises(UnavailableError, match="no cuNothing: it is too old"):
        context.driver.call("cuNothing")
