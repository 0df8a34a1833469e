"""What frontend and worker tell each other in the frontend's own memory, without a record.

Which work a dead worker was doing: one byte. Whether a request's inputs are still being copied,
while its record is on its way already: another one.

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

_FOLLOWING = 1
"""The place of the second byte."""


def checked(region: Region) -> Region:
    """``region``; ProtocolError where it is too small for a mark."""
    if region.size < MARK_BYTES:
        raise ProtocolError(f"a mark takes {MARK_BYTES} bytes, not {region.size}")
    return region


def reset(memory: memoryview) -> None:
    """Frontend, before (re-)sending."""
    memory[0] = WAITING


def let_inputs_follow(memory: memoryview, do_they: bool) -> None:
    """Frontend, before sending: whether the inputs will be there only when it says so."""
    memory[_FOLLOWING] = do_they


def inputs_are_there(memory: memoryview) -> None:
    """Frontend, after the last of them. For processors whose stores are seen in their order."""
    memory[_FOLLOWING] = False


def has_inputs(memory: memoryview) -> bool:
    """Worker, before it reads any of them."""
    return not memory[_FOLLOWING]


def begin(memory: memoryview) -> None:
    """Worker, before it computes anything of this request or load."""
    memory[0] = BEGUN


def has_begun(memory: memoryview) -> bool:
    """Frontend, after the connection broke."""
    return memory[0] == BEGUN
