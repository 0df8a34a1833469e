"""Models on a device: captured for each shape, one run at a time, given back; on a stand-in for
the driver, where work is done by the call that issues it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from brisk.errors import InvalidModelError
from brisk.gpu import capture as capture_module
from brisk.gpu.device import Device
from brisk.gpu.driver import Context, CudaError, Driver, Stream
from brisk.gpu.network import (
    MOST_CAPTURED,
    MOST_EVICTED,
    MOST_INSTANCES,
    CapturedNetwork,
    CapturedRun,
    Instance,
)
from brisk.runtime.sessions.device import LaunchQueue
from support.runtime.fake_driver import CopyingSession, fake_driver


@pytest.fixture
def device() -> Iterator[Device]:
    device = Device(Context(Driver(fake_driver())))
    yield device
    sessions = [session for each in NetworkUnderTest.alive for session in each.sessions]
    while NetworkUnderTest.alive:
        NetworkUnderTest.alive.pop().network.close()
    device.perform(lambda: None).result()
    for memory in (memory for session in sessions for memory in session.scratch):
        memory.close()
    device.context.close()


class NetworkUnderTest:
    """A network over a session that copies, and what was said of it."""

    alive: ClassVar[list[NetworkUnderTest]] = []

    def __init__(self, device: Device, *, plans_by_shape: bool = False, **session: Any) -> None:
        self.device, self._made_with = device, session
        self.sessions: list[CopyingSession] = []
        self.told: list[str] = []
        self.plain: list[list[float]] = []
        self.is_gone = False
        self.network = CapturedNetwork(
            device,
            self.open(),
            self.open if plans_by_shape else None,
            lambda: SimpleNamespace(add_run_config_entry=lambda key, value: None),
            self.told.append,
        )
        self.alive.append(self)

    def open(self) -> Instance:
        if self.is_gone:
            raise InvalidModelError("the file has changed")
        stream = self.device.borrow()
        self.sessions.append(CopyingSession(self.device.context, stream, **self._made_with))
        return Instance(self.sessions[-1], stream, self.run_plain)

    @property
    def session(self) -> CopyingSession:
        (session,) = self.sessions
        return session

    def run_plain(self, inputs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        self.plain.append(inputs["x"].tolist())
        return {"y": inputs["x"] * 1}

    def run(self, *values: float) -> CapturedRun:
        return CapturedRun(self.network, {"x": np.array(values, np.float32)}, ["y"])


@pytest.fixture(autouse=True)
def _chunks_of_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "CHUNK_US", 0.0)


def finished(run: CapturedRun) -> list[float]:
    while not run.step():
        pass
    values: list[float] = run.results()["y"].tolist()
    return values


def test_a_run_is_captured_once_and_launched_from_then_on(device: Device) -> None:
    network = NetworkUnderTest(device)
    assert finished(network.run(1, 2, 3)) == [1, 2, 3]
    runs = network.session.runs
    assert finished(network.run(4, 5, 6)) == [4, 5, 6]
    assert network.session.runs == runs
    assert finished(network.run(7, 8)) == [7, 8]
    assert network.session.runs > runs, "another shape is another capture"
    assert not network.told


def test_a_run_that_is_not_urgent_goes_in_chunks_an_urgent_one_in_one_launch(
    device: Device,
) -> None:
    network = NetworkUnderTest(device, steps=5)
    finished(network.run(1, 2))
    run = network.run(3, 4)
    with device.issuing(device.streams[2]):
        steps = [run.step() for _ in range(5)]
    assert steps == [False] * 4 + [True]
    run = network.run(5, 6)
    with device.issuing(device.streams[0]):
        assert run.step()
    assert run.results()["y"].tolist() == [5, 6]


@pytest.mark.parametrize("parked_at", range(1, 5))
def test_a_run_that_lost_the_memory_to_another_begins_again(
    device: Device, parked_at: int
) -> None:
    network = NetworkUnderTest(device, steps=5)
    finished(network.run(0, 0))
    parked = network.run(1, 2)
    for _ in range(parked_at):
        assert not parked.step()
    with device.issuing(device.streams[0]):
        assert finished(network.run(8, 9)) == [8, 9]
    assert not parked.is_finished
    assert finished(parked) == [1, 2]


def test_a_run_that_ended_and_was_not_read_does_not_answer_with_another_one_s(
    device: Device,
) -> None:
    network = NetworkUnderTest(device)
    finished(network.run(0, 0))
    first, second = network.run(1, 2), network.run(3, 4)
    while not first.step():
        pass
    assert finished(second) == [3, 4]
    assert not first.is_finished
    assert finished(first) == [1, 2]


def test_answers_stay_as_they_are_when_others_follow(device: Device) -> None:
    network = NetworkUnderTest(device)
    run = network.run(1, 2)
    finished(run)
    answer = run.results()["y"]
    finished(network.run(3, 4))
    assert answer.tolist() == [1, 2]


def test_what_cannot_be_captured_is_run_as_ever_and_told_once(device: Device) -> None:
    network = NetworkUnderTest(device, refuses="operation not permitted when stream is capturing")
    assert finished(network.run(1, 2)) == [1, 2]
    assert finished(network.run(3, 4)) == [3, 4]
    assert network.plain == [[1, 2], [3, 4]]
    (text,) = network.told
    assert "not permitted when stream is capturing" in text


def test_a_capture_that_answers_otherwise_than_its_session_is_not_used(device: Device) -> None:
    network = NetworkUnderTest(device, steps=3)
    network.session.is_wrong_when_captured = True
    assert finished(network.run(1, 2)) == [1, 2]
    assert network.plain == [[1, 2]]
    assert "answers otherwise than its session" in network.told[0]


def test_types_that_numpy_does_not_have_are_run_as_ever(device: Device) -> None:
    network = NetworkUnderTest(device)
    run = CapturedRun(network.network, {"x": np.array([["a"]], object)}, ["y"])
    while not run.step():
        pass
    assert run.results()["y"].tolist() == [["a"]]


@pytest.mark.parametrize("function", ["cuMemAlloc_v2", "cuGraphInstantiateWithFlags"])
def test_where_the_device_has_no_room_for_a_capture_runs_go_on_as_ever(
    device: Device, function: str
) -> None:
    network = NetworkUnderTest(device)
    ctypes.CDLL(fake_driver()).fake_fail(function.encode(), 2)
    assert finished(network.run(1, 2)) == [1, 2]
    assert finished(network.run(3, 4)) == [3, 4]
    assert network.plain == [[1, 2], [3, 4]]
    (text,) = network.told
    assert f"{function} of NVIDIA's driver failed: CUDA_ERROR_OUT_OF_MEMORY" in text


def test_a_device_that_is_lost_is_told_and_not_gone_on_with(device: Device) -> None:
    network = NetworkUnderTest(device)
    ctypes.CDLL(fake_driver()).fake_fail(b"cuGraphLaunch", 700)
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS") as raised:
        finished(network.run(1, 2))
    assert raised.value.is_sticky


def test_no_more_shapes_are_kept_than_the_limit(device: Device) -> None:
    network = NetworkUnderTest(device, steps=2)
    for count in range(1, MOST_CAPTURED + 4):
        finished(network.run(*range(count)))
    assert len(network.network.captured) == MOST_CAPTURED


def test_all_is_given_back_when_a_network_closes(device: Device) -> None:
    library = ctypes.CDLL(fake_driver())

    def alive() -> list[int]:
        return [library.fake_alive(ord(kind)) for kind in "XGSE"]

    device.give_back(device.borrow())
    before = alive()
    network = NetworkUnderTest(device)
    for values in ((1, 2), (3, 4, 5)):
        finished(network.run(*values))
    assert alive() != before
    network.network.close()
    device.perform(lambda: None).result()
    assert alive() == before


# --- sessions that plan for the shapes of a run ---------------------------------------------


def test_each_shape_has_a_session_of_its_own_when_it_comes_again(device: Device) -> None:
    network = NetworkUnderTest(device, plans_by_shape=True)
    for values in ((1, 2), (3, 4)):
        assert finished(network.run(*values)) == list(values)
    assert network.plain == [[1, 2]], "the first time it is run as ever"
    for values in ((1, 2, 3), (4, 5, 6), (7, 8)):
        assert finished(network.run(*values)) == list(values)
    assert network.plain == [[1, 2], [1, 2, 3]]
    runs = [session.runs for session in network.sessions]
    for values in ((9, 9, 9), (9, 9), (8, 8, 8)):
        assert finished(network.run(*values)) == list(values)
    assert [session.runs for session in network.sessions] == runs, (
        "each goes on as it was captured"
    )
    captured = [session for session in network.sessions if session.runs]
    assert len(captured) == 2


def test_what_is_not_captured_has_no_session_of_what_is(device: Device) -> None:
    """A run of another shape would take the plan away that was captured."""
    network = NetworkUnderTest(device, plans_by_shape=True)
    inputs = {"x": np.array([1, 2], np.float32)}
    network.network.capture(network.run(1, 2).key, inputs).result()
    assert finished(network.run(3, 4, 5)) == [3, 4, 5]
    assert len(network.sessions) == 2
    assert finished(network.run(3, 4)) == [3, 4]
    assert network.plain == [[3, 4, 5]]


def test_shapes_that_hardly_come_again_are_not_captured_for_ever(device: Device) -> None:
    network = NetworkUnderTest(device, plans_by_shape=True, steps=2)
    for count in range(1, MOST_EVICTED + MOST_INSTANCES + 4):
        for _ in range(2):
            finished(network.run(*range(count)))
    assert len(network.network.captured) == MOST_INSTANCES
    sessions = len(network.sessions)
    for _ in range(3):
        finished(network.run(*range(100)))
    assert len(network.sessions) == sessions


def test_where_no_other_session_can_be_had_one_serves_all(device: Device) -> None:
    network = NetworkUnderTest(device, plans_by_shape=True)
    for _ in range(2):
        finished(network.run(1, 2))
    network.is_gone = True
    for values in ((1, 2, 3), (4, 5, 6), (7, 8)):
        assert finished(network.run(*values)) == list(values)
    assert len(network.sessions) == 2
    network = NetworkUnderTest(device, plans_by_shape=True)
    network.network.capture(network.run(1, 2).key, {"x": np.array([1, 2], np.float32)}).result()
    network.is_gone = True
    for values in ((1, 2, 3), (4, 5, 6), (7, 8)):
        assert finished(network.run(*values)) == list(values)
    assert len(network.sessions) == 1
    assert network.plain == [[1, 2, 3], [4, 5, 6], [7, 8]]
    (text,) = network.told
    assert "the file has changed" in text


def test_a_stream_that_another_thread_takes_first_is_made_anew(device: Device) -> None:
    class Taken(list[Stream]):
        """Holds a stream when it is looked at, and none when it is asked."""

        def __bool__(self) -> bool:
            return True

    device._spare = Taken()
    device.give_back(device.borrow())


def test_work_of_the_lane_that_fails_is_told_to_who_asked(device: Device) -> None:
    def fail() -> None:
        raise ValueError("no")

    ticket = device.perform(fail)
    with pytest.raises(ValueError, match="no"):
        ticket.result()
    assert device.perform(lambda: 3).result() == 3


# --- how far runs are issued ahead ------------------------------------------------------------


class Late:
    """Events that are behind when they are told to be: a device that takes its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = 0
        self.recorded: list[Any] = []
        monkeypatch.setattr("brisk.gpu.driver.Event.record", self.record)
        monkeypatch.setattr("brisk.gpu.driver.Event.is_done", self.is_done)

    @property
    def record(self) -> Callable[[Any, Any], None]:
        return lambda event, stream: self.recorded.append(event)

    @property
    def is_done(self) -> Callable[[Any], bool]:
        return lambda event: event not in self.recorded[self.done :]


class Steps:
    def __init__(self, count: int) -> None:
        self.left = count

    def step(self) -> bool:
        self.left -= 1
        return not self.left


def test_no_more_launches_are_outstanding_than_the_queue_takes(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, queue, frame = Late(monkeypatch), LaunchQueue(device, 1, 2), Steps(6)
    while True:
        while frame.left and queue.has_room():
            queue.issue(frame)  # type: ignore[arg-type]
        if not frame.left:
            break
        assert len(late.recorded) - late.done == 2
        late.done += 1
    assert not queue.is_done()
    late.done = len(late.recorded)
    assert queue.is_done()


def test_a_queue_without_a_bound_records_the_end_alone(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, queue, frame = Late(monkeypatch), LaunchQueue(device, 0, None), Steps(4)
    while not queue.issue(frame):  # type: ignore[arg-type]
        assert queue.has_room()
        assert queue.is_done()
    assert len(late.recorded) == 1
    assert not queue.is_done()


def test_on_a_processor_a_step_is_done_when_it_returns() -> None:
    queue, frame = LaunchQueue(), Steps(2)
    with queue.issuing():
        while not queue.issue(frame):  # type: ignore[arg-type]
            assert queue.has_room()
    assert queue.is_done()
