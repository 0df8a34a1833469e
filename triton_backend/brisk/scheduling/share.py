"""How much of the recent time some work ran."""

from __future__ import annotations

HALF_LIFE_NS = 500_000_000
"""What happened this long ago counts half."""


class ShareMeter:
    """Told of every change between running and being held; times with nothing to do do not count.

    Not thread-safe.
    """

    __slots__ = ("_held_ns", "_is_held", "_ran_ns", "_since_ns")

    def __init__(self) -> None:
        self._ran_ns = 0.0
        self._held_ns = 0.0
        self._is_held = False
        self._since_ns: int | None = None

    def run(self, now_ns: int) -> None:
        """Work runs from now on."""
        self._advance(now_ns)
        self._is_held = False

    def hold(self, now_ns: int) -> None:
        """Work is held from now on."""
        self._advance(now_ns)
        self._is_held = True

    def rest(self) -> None:
        """There is no work, until ``run`` or ``hold`` is called again."""
        self._since_ns = None

    def share(self, now_ns: int) -> float:
        """The part of the time in which it ran; 1 before anything was held."""
        self._advance(now_ns)
        total_ns = self._ran_ns + self._held_ns
        return self._ran_ns / total_ns if total_ns else 1.0

    def _advance(self, now_ns: int) -> None:
        if self._since_ns is not None:
            passed_ns = now_ns - self._since_ns
            fading = 0.5 ** (passed_ns / HALF_LIFE_NS)
            self._ran_ns *= fading
            self._held_ns *= fading
            if self._is_held:
                self._held_ns += passed_ns
            else:
                self._ran_ns += passed_ns
        self._since_ns = now_ns
