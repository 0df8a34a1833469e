"""Shows whether a worker makes progress: it counts beats in memory that its supervisor reads.

A worker that is stopped, or whose threads wait for each other, never ends by itself. Its
supervisor ends it, and the next worker gets its requests.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable

LOOK_S = 0.5
"""Time between two looks of the supervisor."""

PATIENCE_S = 10.0
"""The longest time without a beat of a worker that is needed, which beats about once a second."""

BACKGROUND_PATIENCE_S = 60.0
"""The longest time without a beat of the background worker, which others on the machine may keep
from the processors."""

GPU_START_PATIENCE_S = 120.0
"""The longest time until the first beat of a worker on a GPU, as long as stubs wait for a runtime:
NVIDIA's libraries from a cold disk, or a device without its persistence daemon, can take more
than ``PATIENCE_S``."""

_MOST_GAP = 6.0
"""The longest time, in LOOK_S, between two looks; a longer one means that the supervisor itself
was stopped, with the machine."""

_BEATS, _PEERS, _USERS = 0, 1, 2


class Heartbeat:
    """A page that a supervisor shares with the worker which it forks.

    ``neighbour``: that of the runtime's other worker, if it has two.
    """

    def __init__(self) -> None:
        self.neighbour: Heartbeat | None = None
        self._words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    def beat(self, peers: int) -> None:
        """Note that the worker makes progress; ``peers``: how many need it."""
        self._words[_BEATS] += 1
        self._words[_PEERS] = peers

    @property
    def beats(self) -> int:
        return self._words[_BEATS]

    @property
    def is_needed(self) -> bool:
        """Whether the worker had peers at its last beat."""
        return self._words[_PEERS] > 0

    def count_users(self, users: int) -> None:
        """Note how many peers of servers the worker has greeted."""
        self._words[_USERS] = users

    @property
    def has_users(self) -> bool:
        """Whether a server uses the worker or its neighbour."""
        own, other = self._words[_USERS], self.neighbour
        return own > 0 or (other is not None and other._words[_USERS] > 0)

    def clear(self) -> None:
        """Begin anew for the next worker: it has no beat yet, and no known peers."""
        self._words[_BEATS] = self._words[_PEERS] = self._words[_USERS] = 0


class StallWatch:
    """The supervisor's check of the workers of one slot, one after the other."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        patience_s: float,
        clock_s: Callable[[], float] = time.monotonic,
        start_patience_s: float | None = None,
    ) -> None:
        """Watch ``heartbeat``. ``start_patience_s``: the patience until a worker's first beat;
        None: as later."""
        self._heartbeat = heartbeat
        self._clock_s = clock_s
        self._patience_s = patience_s
        self._start_patience_s = patience_s if start_patience_s is None else start_patience_s
        self._beats = 0
        self._still_since_s = self._looked_s = clock_s()

    @property
    def patience_s(self) -> float:
        """The longest time that the worker may now be without a beat."""
        return self._patience_s if self._heartbeat.beats else self._start_patience_s

    def begin(self) -> None:
        """Note that the slot has a new worker, also after one that never beat."""
        self._beats, self._still_since_s = 0, self._clock_s()

    def has_stalled(self, *, is_awaited: bool) -> bool:
        """Return whether the worker has made no progress for ``patience_s``, watched throughout.

        Called every LOOK_S. ``is_awaited``: a peer waits that the worker has not seen yet.
        """
        now_s = self._clock_s()
        was_away = now_s - self._looked_s > _MOST_GAP * LOOK_S
        self._looked_s = now_s
        beats = self._heartbeat.beats
        is_needed = self._heartbeat.is_needed or is_awaited
        if beats != self._beats or was_away or not is_needed:
            self._beats, self._still_since_s = beats, now_s
        return now_s - self._still_since_s >= self.patience_s
