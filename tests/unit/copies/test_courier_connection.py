"""Answers of a courier that are none."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from brisk.copies import connection
from brisk.copies.connection import CourierConnection, socket_path
from brisk.errors import ProtocolError, UnavailableError


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """The socket of a courier, at which nothing answers yet."""
    directory = tmp_path / "runtime"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(directory))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(socket_path()))
    listener.listen()
    listener.settimeout(10)
    return listener


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENCE_S", 0.1)
    monkeypatch.setattr(connection, "STUCK_S", 0.2)


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


def test_half_an_answer_is_none(listener: socket.socket) -> None:
    thread = answer_with(listener, b'{"ok": ')
    with CourierConnection() as courier, pytest.raises(UnavailableError, match="has ended"):
        courier.ask("status", {})
    thread.join(10)


@pytest.mark.usefixtures("_impatient")
def test_a_courier_that_is_stuck_is_told_and_not_waited_for(listener: socket.socket) -> None:
    """The kernel accepts connections for it."""
    with (
        listener,
        CourierConnection() as courier,
        pytest.raises(UnavailableError, match="the courier, which fetches models, is stuck"),
    ):
        courier.ask("open", {"url": "", "sha256": "0" * 64})


@pytest.mark.usefixtures("_impatient")
def test_an_answer_that_takes_long_is_waited_for_while_the_courier_tells_its_state(
    listener: socket.socket,
) -> None:
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
