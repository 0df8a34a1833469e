"""Runs code in a separate process, so that it shares no interpreter with the one that measures."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

_SPAWN = multiprocessing.get_context("spawn")


class Child:
    """A running child and this side of the pipe to it; see ``child_process``."""

    def __init__(self, what: str, process: BaseProcess, connection: Connection) -> None:
        self.connection = connection
        self._what = what
        self._process = process

    def say(self, message: Any) -> None:
        """Send ``message`` to the child; do nothing if it has ended, which ``hear`` reports."""
        with contextlib.suppress(BrokenPipeError):
            self.connection.send(message)

    def hear(self, timeout_s: float) -> Any:
        """Return the next message. Raises TimeoutError, and ConnectionError if the child ended."""
        if not self.connection.poll(timeout_s):
            raise TimeoutError(f"{self._what} does not answer")
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(1.0)
            raise self._ended() from None

    def check(self) -> None:
        """Raise ConnectionError if the child has ended."""
        if not self._process.is_alive():
            raise self._ended()

    def _ended(self) -> ConnectionError:
        return ConnectionError(f"{self._what} ended with status {self._process.exitcode}")


@contextlib.contextmanager
def child_process(
    what: str,
    target: Callable[..., None],
    *arguments: Any,
    end_s: float = 2.0,
    context: SpawnContext | ForkServerContext = _SPAWN,
) -> Iterator[Child]:
    """Run ``target(connection, *arguments)`` in a new interpreter while entered.

    On exit the pipe is closed; a child that lives for ``end_s`` after that is killed. ``what``
    names it in messages. ``context``: how multiprocessing starts it.
    """
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(target, theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        with ours:
            yield Child(what, process, ours)
    finally:
        process.join(end_s)
        process.kill()
        process.join()


def _run(target: Callable[..., None], *arguments: Any) -> None:
    """Call ``target``. Ctrl-C, which reaches all processes of a terminal, ends it without a
    traceback: the starter tells of it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    target(*arguments)
