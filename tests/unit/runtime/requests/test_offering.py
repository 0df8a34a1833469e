"""Which models stubs are offered, and when they are taken back, as time passes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from brisk.os_priority import Precedence
from brisk.protocol.channel import Receiver
from brisk.protocol.records import ComputedInStub, ComputeInStub, ComputeNoMore, Record
from brisk.protocol.runtime_paths import Role, new_socket
from brisk.protocol.stub_process import birth_of
from brisk.runtime.models.entry import Binding, LoadOutcome, LoadState
from brisk.runtime.models.load_watch import LoadWatch
from brisk.runtime.models.table import SessionTable
from brisk.runtime.peers.connections import Connections
from brisk.runtime.pipelines.loading import PipelineLoads
from brisk.runtime.preemption.gate import Gate
from brisk.runtime.requests.offering import (
    COLD,
    LEAST_ANSWERS,
    LEAST_RATE,
    LONGER_BYTES,
    LONGER_NS,
    SMALL_NS,
    Offering,
    averaged,
    least_rate,
)
from brisk.runtime.sessions.session_caches import SessionCaches
from brisk.scheduling.times import RunProfile
from brisk.telemetry.events import INCIDENTS
from support.open_files import no_descriptor_left
from support.runtime.requests import ASession, NotingLoader, a_model, with_memory

ADDRESS = f"\0brisk-offering-{os.getpid()}"


@dataclass
class _Prepared(ASession):
    """It runs from a prepared form, without learned caches."""

    prepared: Path | None = Path("form")
    weight_bytes: int = 48 << 20
    caches: SessionCaches | None = field(default_factory=SessionCaches)


class Stub:
    """Of one small model, and the worker that it is connected to."""

    def __init__(self, folder: Path, role: Role = Role.FOREGROUND) -> None:
        self._listener = new_socket()
        self._listener.bind(ADDRESS)
        self._listener.listen(1)
        self._connections = Connections([self._listener])
        self._socket = new_socket()
        self._socket.connect(ADDRESS)
        assert list(self._connections.poll(1.0)) == []
        (peer,) = self._connections.peers.values()
        loader = NotingLoader()
        table = SessionTable(
            loader, PipelineLoads(loader.tell, LoadWatch(60.0)), Precedence(0, print, set)
        )
        path = folder / "1" / "model.onnx"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"model")
        self.binding: Binding = table.bind(with_memory(peer), a_model(path))
        table.settle(LoadOutcome(loader.asked[0], _Prepared(), None))
        loader.asked[0].reach(LoadState.SETTLED)
        profile = RunProfile()
        profile.learn(100_000)
        self.binding.lone_run = profile, 1
        self._gate = Gate()
        self._offering = Offering(self._connections, table, self._gate.descriptor, 4, role)
        self._now_ns = 0
        self._offering.look(self._now_ns)

    def pass_s(self, seconds: int, rate: int) -> list[Record]:
        """What it is told while its model answers so many requests a second."""
        for _ in range(seconds):
            self._now_ns += 1_000_000_000
            self.binding.answered += rate
            self._offering.look(self._now_ns)
        told: list[Record] = []
        receiver = Receiver(self._socket)
        with contextlib.suppress(BlockingIOError):
            while True:
                record, descriptor = receiver.receive(wait=False)
                if descriptor is not None:
                    os.close(descriptor)
                told.append(record)
        return told

    def dies(self) -> None:
        """Let the process that it was be gone, and its server be this one."""
        peer = self.binding.peer
        peer.pid, peer.parent, peer.server_birth = 2**22 + 1, os.getpid(), birth_of(os.getpid())
        self._offering.gone(peer)

    def gives_up(self) -> None:
        self._offering.computed(
            self.binding.peer, ComputedInStub(self.binding.model.model, 0, (), gives_up=True)
        )

    def close(self) -> None:
        self._socket.close()
        self._connections.close()
        self._listener.close()


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    made = Stub(tmp_path)
    yield made
    made.close()


def test_a_model_is_offered_when_it_is_hot_and_taken_back_when_it_is_cold(stub: Stub) -> None:
    least = least_rate(stub.binding)
    (offer,) = stub.pass_s(90, round(least) + 2)
    assert isinstance(offer, ComputeInStub)
    assert stub.pass_s(90, round(COLD * least) + 1) == []  # between the two it stays where it is
    (back,) = stub.pass_s(90, 0)
    assert isinstance(back, ComputeNoMore)
    (again,) = stub.pass_s(60, 1000)
    assert isinstance(again, ComputeInStub)


def test_a_model_that_is_asked_seldom_is_never_offered(stub: Stub) -> None:
    assert stub.pass_s(2 * LEAST_ANSWERS, round(least_rate(stub.binding)) - 1) == []
    assert stub.binding.answered > LEAST_ANSWERS


def test_the_smaller_its_weights_the_sooner_it_is_offered(stub: Stub) -> None:
    session = stub.binding.session
    assert isinstance(session, _Prepared)
    assert stub.pass_s(2 * LEAST_ANSWERS, 1) == []
    session.weight_bytes = 1 << 20
    (offer,) = stub.pass_s(1, 1)
    assert isinstance(offer, ComputeInStub)


def test_a_model_whose_stub_takes_no_offers_is_never_offered(stub: Stub) -> None:
    """Else a stub that dies would be told to have died of computing it."""
    stub.binding.model = stub.binding.model._replace(takes_offers=False)
    assert stub.pass_s(90, 1000) == []


def test_a_model_is_not_offered_before_it_has_answered_often(stub: Stub) -> None:
    stub.binding.rate = 1000.0
    assert stub.pass_s(1, LEAST_ANSWERS - 1) == []
    assert stub.pass_s(1, 1) != []


@pytest.mark.parametrize("passed_s", [0.25, 1.0, 10.0])
def test_the_average_of_a_steady_rate_is_that_rate(passed_s: float) -> None:
    rate = 0.0
    for _ in range(int(180 / passed_s)):
        rate = averaged(rate, round(8 * passed_s), passed_s)
    assert rate == pytest.approx(8.0, rel=1e-3)


def test_the_average_of_what_comes_no_more_falls_below_any_rate() -> None:
    assert averaged(1000.0, 0, 300.0) < COLD * LEAST_RATE
    assert averaged(5.0, 7, 0.0) == 5.0


@pytest.mark.parametrize(
    ("row_ns", "weight_mib", "is_offered"),
    [
        (SMALL_NS - 1, 100, True),
        (SMALL_NS + 1, 100, False),
        (LONGER_NS - 1, LONGER_BYTES >> 20, True),
        (LONGER_NS - 1, (LONGER_BYTES >> 20) + 1, False),
        (LONGER_NS + 1, 1, False),
    ],
)
def test_a_longer_model_is_offered_if_a_copy_of_its_weights_is_small(
    stub: Stub, row_ns: int, weight_mib: int, *, is_offered: bool
) -> None:
    session, profile = stub.binding.session, RunProfile()
    assert isinstance(session, _Prepared)
    session.weight_bytes = weight_mib << 20
    stub.binding.lone_run = profile, 1
    profile.learn(row_ns)
    assert len(stub.pass_s(3, 1000)) == is_offered


def test_what_a_run_takes_longer_beside_others_does_not_count(stub: Stub) -> None:
    """The worker's clock runs on while other processes have the processors."""
    profile = RunProfile()
    stub.binding.lone_run = profile, 1
    profile.learn(SMALL_NS + 1)
    assert stub.pass_s(10, 1000) == []
    profile.learn(SMALL_NS // 2)
    for _ in range(5):
        profile.learn(5 * SMALL_NS)
    (offer,) = stub.pass_s(1, 1000)
    assert isinstance(offer, ComputeInStub)
    assert offer.row_ns == SMALL_NS // 2


def test_a_stub_that_was_told_too_long_a_time_is_told_anew(stub: Stub) -> None:
    """The one run measured by then may have waited for a processor for most of its time."""
    (offer,) = stub.pass_s(90, 1000)
    assert isinstance(offer, ComputeInStub)
    assert stub.binding.lone_run is not None
    profile, _ = stub.binding.lone_run
    profile.learn(70_000)
    assert stub.pass_s(10, 1000) == []
    profile.learn(2_000)
    (again,) = stub.pass_s(10, 1000)
    assert isinstance(again, ComputeInStub)
    assert (offer.row_ns, again.row_ns) == (100_000, 2_000)


def test_what_its_stub_gives_up_is_taken_back_and_never_offered_again(stub: Stub) -> None:
    (offer,) = stub.pass_s(90, 1000)
    assert isinstance(offer, ComputeInStub)
    stub.gives_up()
    (back,) = stub.pass_s(1, 1000)
    assert isinstance(back, ComputeNoMore)
    assert stub.pass_s(90, 0) == []
    assert stub.pass_s(90, 1000) == []
    assert "took too long in its stub" in INCIDENTS.newest(1)[0][1]


def test_a_stub_that_died_is_noted_once_a_descriptor_is_left_to_see_that(stub: Stub) -> None:
    (offer,) = stub.pass_s(90, 1000)
    assert isinstance(offer, ComputeInStub)
    stub.dies()
    before = INCIDENTS.newest(1)
    with no_descriptor_left():
        stub.pass_s(3, 1000)
    assert INCIDENTS.newest(1) == before
    stub.pass_s(1, 1000)
    assert "has died while it computed the model itself" in INCIDENTS.newest(1)[0][1]


def test_a_stub_that_died_without_computing_is_told_of_and_its_model_is_offered_again(
    stub: Stub, tmp_path: Path
) -> None:
    stub.dies()
    stub.pass_s(1, 0)
    name = stub.binding.model.name
    assert INCIDENTS.newest(1)[0][1] == (
        f"the stub of model '{name}' has died: its instance is gone until the entry is unloaded "
        "and loaded again"
    )
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("case", ["it leaves", "its load failed", "its server died", "it lives"])
def test_a_stub_that_has_not_died_by_itself_is_not_told_of(stub: Stub, case: str) -> None:
    before = INCIDENTS.newest(1)
    if case == "it leaves":
        stub.binding.peer.is_leaving = True
    elif case == "its load failed":
        stub.binding.session = None
    stub.dies()
    if case == "its server died":
        stub.binding.peer.server_birth = 1
    elif case == "it lives":
        stub.binding.peer.pid = os.getpid()
    stub.pass_s(2, 0)
    assert INCIDENTS.newest(1) == before


@pytest.mark.parametrize(("job_class", "told"), [("normal", False), ("besteffort", True)])
def test_the_background_worker_tells_of_stubs_of_besteffort_models_alone(
    job_class: str, tmp_path: Path, *, told: bool
) -> None:
    """Those of others are connected to the foreground worker, too, which tells of them."""
    stub = Stub(tmp_path, Role.BACKGROUND)
    before = INCIDENTS.newest(1)
    stub.binding.model = stub.binding.model._replace(job_class=job_class)
    stub.dies()
    stub.pass_s(1, 0)
    stub.close()
    assert (INCIDENTS.newest(1) != before) is told
