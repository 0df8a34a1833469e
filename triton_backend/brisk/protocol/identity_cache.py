"""What follows from an object that comes again and again, found by which object it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Subject = TypeVar("Subject")
Derived = TypeVar("Derived")


class ByIdentity(Generic[Subject, Derived]):
    """Keeps ``derive(subject)`` for up to ``most`` subjects, which it keeps alive. Any thread.

    For subjects that never change, and where looking at all of one to hash it would take longer
    than what is saved.
    """

    def __init__(self, derive: Callable[[Subject], Derived], most: int = 1024) -> None:
        self._derive = derive
        self._most = most
        self._known: dict[int, tuple[Subject, Derived]] = {}

    def __call__(self, subject: Subject) -> Derived:
        """Raises as ``derive`` does; nothing is kept then."""
        known = self._known.get(id(subject))
        if known is not None:
            return known[1]
        derived = self._derive(subject)
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[id(subject)] = subject, derived
        return derived
