"""Answers of a courier that are none."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

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


def answer_with(listener: socket.socket, answer: bytes) -> threading.Thread:
    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(answer)

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
