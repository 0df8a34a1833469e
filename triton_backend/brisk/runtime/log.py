"""The runtime's own words: lines on the standard error of the server that started it."""

from __future__ import annotations

import contextlib
import sys

from brisk.telemetry.events import INCIDENTS


def say(text: str) -> None:
    """One line; nothing where that server, and the other end of the pipe, is gone."""
    with contextlib.suppress(OSError, ValueError):
        print(f"brisk: {text}", file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """In the server's log and in ``brisk status``."""
    say(text)
    INCIDENTS.note(text)
