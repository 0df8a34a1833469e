"""What a worker tells a frontend in the frontend's own memory, without a record: one byte, of
which work it was doing when it died.

The frontend gives every request and load a mark. The worker sets it the moment it begins, so
after the worker's death the frontend knows without asking whom to suspect: the mark outlives
the process that wrote it.
"""

from __future__ import annotations

from brisk.errors import ProtocolError
from brisk.protocol.records import Region

MARK_BYTES = 64
"""A cache line, so that a mark shares none with tensor data."""

WAITING = 0
BEGUN = 1


def checked(region: Region) -> Region:
    """``region``; ProtocolError where it is too small for a mark."""
    if region.size < MARK_BYTES:
        raise ProtocolError(f"a mark takes {MARK_BYTES} bytes, not {region.size}")
    return region


def reset(memory: memoryview) -> None:
    """Frontend, before (re-)sending."""
    memory[0] = WAITING


def begin(memory: memoryview) -> None:
    """Worker, before it computes anything of this request or load."""
    memory[0] = BEGUN


def has_begun(memory: memoryview) -> bool:
    """Frontend, after the connection broke."""
    return memory[0] == BEGUN
