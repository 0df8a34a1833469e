"""Words of messages for people."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 segment``, ``2 segments``. ``plural``: of a noun that takes more than an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
