"""A connection to the courier, the process that fetches models (``brisk.sourcing``).

A courier is started if none runs. Requests and answers are lines of JSON over a Unix socket in the
runtime's directory, one answer for each request, in order:

| request | answer |
| --- | --- |
| ``{"open": {"url", "sha256"}}`` | ``{"ok": {"folder", "model"}}`` when the copy's head is |
| | here; an empty ``url``: that of the copy's ``origin`` |
| ``{"take": {"sha256", "form", "begun"}}`` | ``{"ok": {"path"}}`` when the bytes are here that |
| | say where the form's parts lie; ``path`` null if raw weights come sooner, there is no such |
| | form, or, with ``begun``, which may be left out, the form is not arriving already |
| ``{"await": {"sha256", "ranges"}}`` | ``{"ok": {}}`` when all of these chunks are here; |
| | ``{"waiting": {"missing_bytes", "bytes_per_s", "problem"}}`` each 0.2 s until then; with |
| | ``"compared": true`` when the copy is whole (``copies.remote.WHOLE``) as well |
| ``{"status": {}}`` | ``{"ok": {"copies": [...]}}`` |
| anything that fails | ``{"error": {"code", "message"}}`` |

A copy is fetched and kept while a connection that has opened it exists, and a second longer. Until
a client requests bytes by ``take`` or ``await``, the courier fetches what a start is likely to
need: a prepared form, or the weights in order.

The module imports little that its importers, the stubs, do not: other modules read manifests.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from brisk.copies.remote import WHOLE, keep, noted_model, read_remote_file, remote_directory
from brisk.errors import (
    ArtefactError,
    BriskError,
    InvalidConfigurationError,
    ProtocolError,
    UnavailableError,
    named_error,
)
from brisk.interpreter import python_environment, runtime_python
from brisk.ownership import check_directory
from brisk.settings import COURIER_SOCKET, runtime_directory

if TYPE_CHECKING:
    import subprocess  # imported to start one alone

_Connection = TypeVar("_Connection", bound="CourierConnection")
_Answer = TypeVar("_Answer")

MODULE = "brisk.sourcing"
START_TIMEOUT_S = 30.0
_RETRY_PAUSE_S = 0.02
_AGAIN_S = 0.2
"""The pause before another courier is started, if the one that was started found the lock held:
its holder may still be starting, or may be ending, and accepts no connections any more then."""

MOST_LINE_BYTES, MOST_ANSWER_BYTES = 1 << 20, 1 << 24
"""The longest request and answer: that to ``status`` has each source of each copy."""

MOST_TRIES = 3
"""How often at most a request is sent, each time to another courier, where each ends before it
answers."""

SILENCE_S, STUCK_S = 30.0, 10.0
"""The silence after which a client checks whether the courier answers at all, and how long that
may take. A head that arrives slowly takes longer."""

_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(8 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "MALLOC_TOP_PAD_": str(1 << 20),
}
"""Settings of the courier's allocator: what it has read into stays its own and is read into again.
By itself the C library gives it back to the kernel after each piece, and pages that are new each
time took a tenth of the courier's processor time."""

_started: list[subprocess.Popen[bytes]] = []
"""Couriers that this process has started; polled so that none stays behind as a zombie."""

_starting: dict[Path, subprocess.Popen[bytes]] = {}
"""The last of them, by its socket, until a courier is reached there: one at a time is started,
whichever threads ask for one."""

_starting_lock = threading.Lock()
_CREDENTIALS = struct.Struct("3i")


def socket_path() -> Path:
    return runtime_directory() / COURIER_SOCKET


def lock_path() -> Path:
    """Return the path of the lock that the courier holds for as long as it lives."""
    return runtime_directory() / "courier.lock"


class CourierEndedError(UnavailableError):
    """The courier has ended before it answered; the next connection starts another one."""


class CourierConnection:
    """A connection to the courier, for one thread at a time.

    The copies that it has opened are fetched for as long as it is open.
    """

    def __init__(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Connect, starting a courier if none runs. Raises UnavailableError if none can be reached
        or started, InvalidConfigurationError if it ends while it starts."""
        self._socket = _connect(timeout_s)
        self._received = bytearray()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self: _Connection) -> _Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, name: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request that has one answer; return the content of that. Raises the courier's
        BriskError."""
        self.send(name, content)
        return self.answer()["ok"]

    def send(self, name: str, content: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps({name: content}).encode() + b"\n")
        except OSError as error:
            raise CourierEndedError(f"the courier has gone: {error}") from error

    def answer(self) -> Mapping[str, Any]:
        """Return the next answer, whose only key is its kind. Raises the courier's BriskError, and
        UnavailableError if the courier has ended or is stuck."""
        line = self._line()
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or len(answer) != 1:
            raise ProtocolError(f"the courier answers {line!r:.80}")
        if (failure := answer.get("error")) is not None:
            raise named_error(str(failure["code"]), str(failure["message"]))
        return answer

    def _line(self) -> bytes:
        begin = 0
        while (end := self._received.find(b"\n", begin)) < 0:
            if (begin := len(self._received)) > MOST_ANSWER_BYTES:
                raise ProtocolError(f"the courier answers {bytes(self._received)!r:.80}")
            try:
                piece = self._socket.recv(1 << 16)
            except TimeoutError:
                _check_it_answers()
                continue
            except OSError as error:
                raise CourierEndedError(f"the courier does not answer: {error}") from error
            if not piece:
                raise CourierEndedError("the courier has ended")
            self._received += piece
        line = bytes(self._received[: end + 1])
        del self._received[: end + 1]
        return line


def asked_again(ask: Callable[[], _Answer]) -> _Answer:
    """Return what ``ask`` returns, which connects to the courier and waits for its answers; it is
    called again, ``MOST_TRIES`` times in all, while it raises CourierEndedError."""
    for _ in range(MOST_TRIES - 1):
        with contextlib.suppress(CourierEndedError):
            return ask()
    return ask()


def _check_it_answers() -> None:
    """Raise UnavailableError if the courier does not answer a question that needs no waiting."""
    with _socket() as connection:
        connection.settimeout(STUCK_S)
        try:
            connection.connect(str(socket_path()))
            connection.sendall(b'{"status": {}}\n')
            answers = bool(connection.recv(1))
        except OSError:
            answers = False
    if not answers:
        raise UnavailableError(
            "the courier, which fetches models, is stuck: it has said nothing for "
            f"{SILENCE_S:.0f} s and does not tell its state within {STUCK_S:.0f} s"
        )


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)


def is_there() -> bool:
    """Whether a courier runs and accepts connections."""
    with _socket() as connection:
        return connection.connect_ex(str(socket_path())) == 0


def start_early() -> None:
    """Start the courier unless one runs, before it is needed, and wait for nothing.

    Errors are dropped: the first connection reports them.
    """
    with contextlib.suppress(OSError, BriskError):
        _start_if_absent()


def _connect(timeout_s: float) -> socket.socket:
    place, deadline_s = socket_path(), time.monotonic() + timeout_s
    starting: subprocess.Popen[bytes] | None = None
    again_s = 0.0
    while True:
        connection = _socket()
        try:
            check_directory(place.parent)
            connection.connect(str(place))
            connection.settimeout(SILENCE_S)
            _reap_other(connection, deadline_s)
            return connection
        except PermissionError as error:
            connection.close()
            raise UnavailableError(f"the courier's socket cannot be used: {error}") from error
        except OSError:
            connection.close()
        if starting is None:
            if time.monotonic() >= again_s:
                starting = _start_if_absent()
        elif (status := starting.poll()) == 0:
            starting, again_s = None, time.monotonic() + _AGAIN_S
        elif status is not None:
            raise InvalidConfigurationError(
                f"the courier, which fetches models, ended with status {status} while it started "
                f"with {runtime_python()}; its own words are in the server's log. Where a package "
                "is missing there: pip install 'brisk-triton[remote]'"
            )
        if time.monotonic() > deadline_s:
            raise UnavailableError(
                f"the courier, which fetches models, did not answer at {place} within "
                f"{timeout_s:.0f} s"
            )
        time.sleep(_RETRY_PAUSE_S)


def _start_if_absent() -> subprocess.Popen[bytes] | None:
    """Return the courier that this process is starting, begun unless it already was; None if one
    accepts connections."""
    place = socket_path()
    with _starting_lock:
        starting = _starting.get(place)
        if starting is None or starting.poll() is not None:
            if is_there():
                return None
            starting = _starting[place] = _start()
        return starting


def _reap_other(connection: socket.socket, deadline_s: float) -> None:
    """Wait for the end of the courier that this process has started if ``connection`` is to
    another, which holds the lock: a process that becomes a server would leave a zombie."""
    with _starting_lock:
        started = _starting.pop(socket_path(), None)
    if started is None:
        return
    import subprocess

    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    reached, _, _ = _CREDENTIALS.unpack(data)
    if started.pid != reached:
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(max(deadline_s - time.monotonic(), 0.0))


def _start() -> subprocess.Popen[bytes]:
    """Start a courier. If several start at once, all but one find the lock taken and end at once,
    with status 0."""
    import subprocess

    environment = {
        **_ALLOCATOR,
        **python_environment(),
        "BRISK_RUNTIME_DIR": str(runtime_directory()),
    }
    runtime_directory().mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        started = subprocess.Popen(
            [runtime_python(), "-m", MODULE],
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__,
            env=environment,
            cwd="/",
        )
    except OSError as error:
        raise UnavailableError(
            f"the courier's Python '{runtime_python()}' cannot be run ({error}); set BRISK_PYTHON"
        ) from error
    _started[:] = [each for each in _started if each.poll() is None]
    _started.append(started)
    return started


# The file that an entry's ``model.remote`` stands for.


def resolve(
    remote_file: Path, meanwhile: Callable[[], None] = lambda: None, *, keeps: bool = False
) -> Path:
    """Return the model's file in the local copy of what ``model.remote`` names.

    The copy's head is here: its weights may still be arriving. ``meanwhile`` is called while the
    courier fetches the head. ``keeps``: the copy is not removed while this process lives. Raises
    InvalidModelError if the file names no such place, or the bytes there are not those that it
    names, UnavailableError if nothing can be fetched.
    """
    remote = read_remote_file(remote_file)
    folder = remote_directory() / remote.sha256
    wait_once = functools.cache(meanwhile)

    def kept(model: Path) -> Path:
        if keeps:
            keep(folder)
        return model

    def opened() -> Path:
        with CourierConnection() as courier:
            courier.send("open", remote._asdict())
            wait_once()
            return kept(Path(str(courier.answer()["ok"]["model"])))

    with contextlib.suppress(OSError, ValueError):
        return kept(noted_model(folder))
    if (folder / WHOLE).exists():
        from brisk.copies.local import LocalCopy  # imported if the courier is not needed

        with contextlib.suppress(OSError, ArtefactError):
            return kept(LocalCopy(folder).model)
    try:
        return asked_again(opened)
    except BriskError as error:
        raise type(error)(f"{remote_file}: {error}") from error
    except OSError as error:
        raise UnavailableError(f"{remote_file}: {error}") from error
