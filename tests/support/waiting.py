"""Waiting for what another thread or process does, and what may fail only of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

PATIENCE_S = 30.0
"""Longest wait for anything; only a failing test takes it."""

_NOTE = "__of_time__"


def wait_until(
    condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S, every_s: float = 0.01
) -> None:
    """Ask ``every_s`` until it is so; AssertionError where it does not become so."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} has not come about in {patience_s:g} s"
        time.sleep(every_s)


class _Timed:
    """``with TIMED:`` around assertions of times and ``wait_until``, and nothing else.

    A test of the mark ``timing`` that fails there is run once more (``second_run``). Whatever
    compares answers, bytes or numbers of requests, or waits for an answer, stands outside: its
    failure is never excused. ``tests/unit/test_second_run.py`` holds what may stand within.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, AssertionError):
            setattr(error, _NOTE, True)


TIMED: Final = _Timed()


def is_of_time(error: BaseException) -> bool:
    return getattr(error, _NOTE, False)
