"""The policy of how long to wait for a source and when to ask it again: pure functions of
times."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

PEER_SILENCE_S = 0.6
"""The silence after which a peer counts as gone: a live one ends its answer when it has had
nothing new for 0.25 s."""

FIRST_BYTE_S, NEXT_BYTE_S = 10.0, 3.0
"""The silence after which a registry's answer is given up: before the first byte, since the
registry may have to fetch the file itself, and before later bytes."""

FORM_PATIENCE_S = 5.0
"""The time without a further chunk of what says where a prepared form's parts lie, after which a
start takes weights instead."""

SLOW_S = 2.0
SLOW_SHARE = 0.5
"""The share of the expected rate below which a source that was busy for ``SLOW_S`` counts as slow,
so that another one is preferred."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
_MOST_DOUBLINGS = 8


LATE_S = 3.0
LATE_FACTOR = 4.0
"""The time that a chunk may take at least, and as a multiple of what another source that has it
would take, before that one is asked for it."""


class Waited(NamedTuple):
    """How a request has been answered so far; times are seconds of one clock."""

    is_peer: bool
    asked_s: float
    heard_s: float | None
    """When the last byte came, or was read for at last; infinity while what has come is written;
    None if none has come."""
    bytes_per_s: float
    """The rate over the last ``SLOW_S``, from all requests to the source."""
    busy_s: float
    """The time for which the source has always had some request."""
    expected: float
    """The bytes/s that are expected from the source."""


def is_silent(waited: Waited, now_s: float) -> bool:
    if waited.heard_s is None:
        patience_s = PEER_SILENCE_S if waited.is_peer else FIRST_BYTE_S
        return now_s - waited.asked_s > patience_s
    return now_s - waited.heard_s > (PEER_SILENCE_S if waited.is_peer else NEXT_BYTE_S)


def is_slow(waited: Waited) -> bool:
    return waited.busy_s >= SLOW_S and waited.bytes_per_s < SLOW_SHARE * waited.expected


def is_late(waited_s: float, chunk_bytes: int, other_bytes_per_s: float) -> bool:
    """Whether a chunk, awaited for ``waited_s``, is better requested from another source that
    gives ``other_bytes_per_s``. A source that trickles is never silent."""
    if other_bytes_per_s <= 0:
        return False
    return waited_s > max(LATE_S, LATE_FACTOR * chunk_bytes / other_bytes_per_s)


def pause_s(failures: int) -> float:
    """Return the pause in seconds after so many consecutive failures of a source; a failure after
    a chunk had arrived counts as the first."""
    doubled = FIRST_PAUSE_S * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS)
    return min(doubled, LONGEST_PAUSE_S) if failures else 0.0


class RateMeter:
    """The bytes per second over the last ``window_s``; callers give the time."""

    def __init__(self, window_s: float = 1.0) -> None:
        self._window_s = window_s
        self._slot_s = window_s / 20
        self._slots: deque[tuple[float, int]] = deque()
        self._since_s: float | None = None
        self.total = 0

    def add(self, size: int, now_s: float) -> None:
        self.total += size
        if self._since_s is None:
            self._since_s = now_s
        if self._slots and now_s - self._slots[-1][0] < self._slot_s:
            begin_s, before = self._slots[-1]
            self._slots[-1] = begin_s, before + size
        else:
            self._slots.append((now_s, size))
        self._forget(now_s)

    def start(self, now_s: float) -> None:
        """Begin to count at ``now_s``: there was no request before."""
        self._slots.clear()
        self._since_s = now_s

    def rate(self, now_s: float) -> float:
        """Return the bytes per second over the window; 0 if nothing arrived in it."""
        self._forget(now_s)
        if not self._slots or self._since_s is None:
            return 0.0
        seconds = min(self._window_s, now_s - self._since_s)
        return sum(size for _, size in self._slots) / max(seconds, self._slot_s)

    def _forget(self, now_s: float) -> None:
        while self._slots and self._slots[0][0] < now_s - self._window_s:
            self._slots.popleft()
