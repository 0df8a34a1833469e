"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 30.0
"""Longest wait for anything; only a failing test takes it."""


def wait_until(
    condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S, every_s: float = 0.01
) -> None:
    """Ask ``every_s`` until it is so; AssertionError where it does not become so."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} has not come about in {patience_s:g} s"
        time.sleep(every_s)
