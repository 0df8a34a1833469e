"""Connections to a courier: how one is started, and answers that are none."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from brisk.copies import connection
from brisk.copies.connection import CourierConnection, socket_path
from brisk.errors import InvalidConfigurationError, ProtocolError, UnavailableError
from support.waiting import PATIENCE_S, wait_until

LISTENING = """
import socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    sys.stdin.read()
"""
WAITING = "import sys; sys.stdin.read()"


@pytest.fixture
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "runtime"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(directory))


def listening() -> socket.socket:
    """Return the socket of a courier, at which nothing answers yet."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(socket_path()))
    listener.listen(128)
    listener.settimeout(10)
    return listener


@pytest.fixture
def listener(_runtime: None) -> socket.socket:
    return listening()


class Couriers:
    """Processes in the place of those that this process starts, which end with their input."""

    def __init__(self) -> None:
        self.code = WAITING
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", self.code, str(socket_path())]
        self.started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return self.started[-1]

    def end(self) -> None:
        for each in self.started:
            assert each.stdin is not None
            each.stdin.close()


@pytest.fixture
def couriers(_runtime: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Couriers]:
    made = Couriers()
    monkeypatch.setattr(connection, "_start", made.start)
    yield made
    made.end()
    for each in made.started:
        each.wait(PATIENCE_S)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENCE_S", 0.1)


def answer_with(listener: socket.socket, answer: bytes) -> threading.Thread:
    def serve() -> None:
        with listener, listener.accept()[0] as asking:
            asking.recv(1 << 16)
            asking.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"no json\n", id="text"),
        pytest.param(b"\xff\xfe\n", id="no text"),
        pytest.param(b"[" * 100_000 + b"\n", id="nested without end"),
        pytest.param(b"[]\n", id="no object"),
        pytest.param(b"{}\n", id="no kind"),
    ],
)
def test_an_answer_that_is_none_is_told_as_such(listener: socket.socket, answer: bytes) -> None:
    thread = answer_with(listener, answer)
    with CourierConnection() as courier, pytest.raises(ProtocolError, match="the courier answers"):
        courier.ask("status", {})
    thread.join(10)


def test_the_state_of_many_copies_with_many_sources_is_read(listener: socket.socket) -> None:
    copies = [{"sha256": "0" * 64, "sources": [{"name": "peer", "problem": "x" * 100}] * 64}] * 200
    thread = answer_with(listener, json.dumps({"ok": {"copies": copies}}).encode() + b"\n")
    with CourierConnection() as courier:
        assert courier.ask("status", {})["copies"] == copies
    thread.join(10)


def test_half_an_answer_is_none(listener: socket.socket) -> None:
    thread = answer_with(listener, b'{"ok": ')
    with CourierConnection() as courier, pytest.raises(UnavailableError, match="has ended"):
        courier.ask("status", {})
    thread.join(10)


@pytest.mark.usefixtures("_impatient")
def test_a_courier_that_is_stuck_is_told_and_not_waited_for(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel accepts connections for it."""
    monkeypatch.setattr(connection, "STUCK_S", 0.2)
    with (
        listener,
        CourierConnection() as courier,
        pytest.raises(UnavailableError, match="the courier, which fetches models, is stuck"),
    ):
        courier.ask("open", {"url": "", "sha256": "0" * 64})


@pytest.mark.usefixtures("_impatient")
def test_an_answer_that_takes_long_is_waited_for_while_the_courier_tells_its_state(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STUCK_S", PATIENCE_S)
    asked = []

    def serve() -> None:
        slow, _ = listener.accept()
        with slow:
            asked.append(slow.recv(1 << 16))
            for _ in range(3):
                with listener.accept()[0] as looking:
                    asked.append(looking.recv(1 << 16))
                    looking.sendall(b'{"ok": {"copies": []}}\n')
            slow.sendall(b'{"ok": {"fol')
            slow.sendall(b'der": "/a"}}\n{"ok": {}}\n')

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener, CourierConnection() as courier:
        assert courier.ask("open", {}) == {"folder": "/a"}
        assert courier.answer() == {"ok": {}}, "a second line that came with the first"
        thread.join(10)
    assert asked == [b'{"open": {}}\n', *[b'{"status": {}}\n'] * 3]


def waiting_threads(
    count: int, connect: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> Sequence[threading.Thread]:
    """Return threads that connect, once each has found no courier and waits for one."""
    tries: Counter[int] = Counter()
    check_directory = connection.check_directory

    def noted(directory: Path) -> None:
        tries[threading.get_ident()] += 1
        check_directory(directory)

    monkeypatch.setattr(connection, "check_directory", noted)
    threads = [threading.Thread(target=connect, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(tries) == count and min(tries.values()) > 1, "a second try of each")
    return threads


def test_threads_of_a_process_start_one_courier_and_collect_it_where_another_answers(
    couriers: Couriers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that becomes a server then has no child that it does not know of."""
    reached: list[CourierConnection] = []
    threads = waiting_threads(
        20, lambda: reached.append(CourierConnection(PATIENCE_S)), monkeypatch
    )
    assert len(couriers.started) == 1
    with listening():
        wait_until(lambda: len(reached) >= 19, "their connections")
        couriers.end()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(reached) == 20
        assert [each.returncode for each in couriers.started] == [0]
        for each in reached:
            each.close()


def test_a_courier_that_was_started_and_answers_is_not_waited_for(
    couriers: Couriers, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[object] = []
    couriers.code = LISTENING
    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "wait", lambda process, *_: waited.append(process))
        CourierConnection(PATIENCE_S).close()
        CourierConnection(PATIENCE_S).close()
    assert len(couriers.started) == 1
    assert not waited
    assert couriers.started[0].poll() is None


def test_one_that_cannot_start_is_told_to_all_that_wait_for_it(
    couriers: Couriers, monkeypatch: pytest.MonkeyPatch
) -> None:
    couriers.code = "import sys; sys.stdin.read(); sys.exit(3)"
    told: list[str] = []

    def connect() -> None:
        with pytest.raises(InvalidConfigurationError, match="ended with status 3") as caught:
            CourierConnection(PATIENCE_S)
        told.append(str(caught.value))

    threads = waiting_threads(5, connect, monkeypatch)
    couriers.end()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(told) == 5
