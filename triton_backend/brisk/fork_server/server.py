"""The fork server: one process per tritonserver from which stubs are forked.

It is Triton's own stub program with ``source/preload.cpp`` in it, so its child is what Triton
would have started, but has Python and Brisk in memory already. ``source/launcher.cpp``, the
process that Triton takes for the stub, asks for a child:

1. the launcher sends the stub's command line (texts between zero bytes);
2. the child answers with its process number and waits for a byte;
3. the launcher sends it, so that no two processes are ever the same stub;
4. when the child has ended, the server sends its wait status.

If the launcher ends first, killed by Triton, the server kills the child. The server itself ends
with tritonserver, after its last child.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from brisk.protocol.stub_process import end_orphan

Become: TypeAlias = "Callable[[list[bytes], int], None]"
"""Called in a new stub with its command line and its launcher's process number."""

ARGUMENTS_VARIABLE = b"_BRISK_STUB_ARGUMENTS"
SEPARATOR = b"\x1f"
"""The form in which ``source/preload.cpp`` gets a new stub's command line."""

_NUMBER = struct.Struct("=i")
_PEER = struct.Struct("3i")
_MESSAGE_BYTES = 64 * 1024
_TIMEOUT_S = 10.0

IDLE_S = 0.02
"""The time without a launcher after which the next one is not expected soon."""

STUBS_END_S = 5.0
"""The time after tritonserver's end after which stubs are killed."""

_PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""Signals that a terminal or an init sends to all processes: the server ends with tritonserver."""

_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class _Stub(NamedTuple):
    """A child that lives; ``ended`` is its process descriptor."""

    pid: int
    ended: int
    launcher: socket.socket


class ForkServer:
    """Forks stubs for the launchers of one tritonserver. Single-threaded, as forking demands."""

    def __init__(self, listener: socket.socket, server: int) -> None:
        """``server`` is tritonserver's process number. Raises OSError if it is gone."""
        self._listener = listener
        self._server_ended = os.pidfd_open(server)
        self._stubs: dict[int, _Stub] = {}
        self._ignored: set[int] = set()
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._poll.register(self._server_ended, select.POLLIN)

    def serve(self, become: Become, when_idle: Callable[[], None] = lambda: None) -> bool:
        """Return True in a new stub, after ``become``, and False when tritonserver has ended.

        ``when_idle``: called once, as soon as no launcher waits. Its errors are raised.
        """
        for number in _PASSED_ON:
            if signal.signal(number, signal.SIG_IGN) is signal.SIG_IGN:
                self._ignored.add(number)  # by tritonserver too, as under nohup
        gc.collect()
        gc.freeze()  # else a stub's first collection would copy all that it shares
        was_idle = False
        while True:
            ready = self._poll.poll(None if was_idle else IDLE_S * 1e3)
            if not ready:
                was_idle = True
                when_idle()
                gc.collect()
                gc.freeze()
            for descriptor, _ in ready:
                if descriptor == self._server_ended:
                    self._outlive_stubs()
                    return False
                if descriptor == self._listener.fileno():
                    if self._take_in(become):
                        return True
                elif descriptor in self._stubs:
                    self._attend(self._stubs[descriptor], descriptor)

    def _take_in(self, become: Become) -> bool:
        """Fork a stub for a launcher that has connected. Return True in the child."""
        launcher, _ = self._listener.accept()
        pid, uid, _ = _PEER.unpack(
            launcher.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        )
        if uid != os.geteuid():
            launcher.close()
            return False
        try:
            child = os.fork()
        except OSError as error:
            launcher.close()  # it becomes Triton's own stub
            print(f"brisk: no stub can be forked now: {error}", file=sys.stderr)
            return False
        if not child:
            self._leave()
            _introduce(launcher, pid, become)
            return True
        stub = _Stub(child, os.pidfd_open(child), launcher)
        self._stubs[stub.ended] = self._stubs[launcher.fileno()] = stub
        self._poll.register(stub.ended, select.POLLIN)
        self._poll.register(launcher, _GONE)
        return False

    def _attend(self, stub: _Stub, descriptor: int) -> None:
        """Clean up after a stub that has ended; kill it first if its launcher has ended."""
        if descriptor != stub.ended:
            os.kill(stub.pid, signal.SIGKILL)
        _, status = os.waitpid(stub.pid, 0)
        with contextlib.suppress(OSError):
            stub.launcher.send(_NUMBER.pack(status))
        for own in (stub.ended, stub.launcher.fileno()):
            self._poll.unregister(own)
            del self._stubs[own]
        os.close(stub.ended)
        stub.launcher.close()

    def _outlive_stubs(self) -> None:
        """End the stubs after tritonserver has ended.

        A stub notices that by itself, unless it is stuck: one whose model is being loaded may wait
        for a lock of the server's for ever, and ignore SIGTERM.
        """
        self._poll.unregister(self._server_ended)
        self._poll.unregister(self._listener)
        until_s = time.monotonic() + STUBS_END_S
        while self._stubs and (left_s := until_s - time.monotonic()) > 0:
            for descriptor, _ in self._poll.poll(left_s * 1e3):
                if descriptor in self._stubs:
                    self._attend(self._stubs[descriptor], descriptor)
        for stub in set(self._stubs.values()):
            print(
                f"brisk: stub {stub.pid} has outlived tritonserver and is ended", file=sys.stderr
            )
            end_orphan(stub.pid)
            self._attend(stub, stub.ended)

    def _leave(self) -> None:
        """Close the server's resources in a child, and restore its signal handlers."""
        for number in _PASSED_ON:
            if number not in self._ignored:
                signal.signal(number, signal.SIG_DFL)
        self._listener.close()
        os.close(self._server_ended)
        for stub in set(self._stubs.values()):
            os.close(stub.ended)
            stub.launcher.close()


def _introduce(connection: socket.socket, launcher: int, become: Become) -> None:
    """Become the stub that the launcher asks for, in a child; exit if the launcher is gone."""
    connection.settimeout(_TIMEOUT_S)
    try:
        arguments = connection.recv(_MESSAGE_BYTES).split(b"\0")
        connection.send(_NUMBER.pack(os.getpid()))
        if not connection.recv(1):
            os._exit(1)
    except OSError:
        os._exit(1)
    connection.close()
    os.putenv(ARGUMENTS_VARIABLE, SEPARATOR.join(arguments))
    become(arguments, launcher)
