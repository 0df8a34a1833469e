"""Whether less urgent runs were really interrupted: by what the workers themselves count."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType

from brisk.observer import Observer
from brisk.protocol.records import Sample
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.telemetry import metrics
from brisk_client.report import Check

COUNTED = (metrics.PREEMPTIONS.name, metrics.FREEZES.name, metrics.HELD_SECONDS.name)
"""A normal run parked; a best-effort layer stopped half-way; a best-effort run held before a
layer."""

LEAST_SHARE = 0.95
"""Of the interruptions stated, that must have happened."""


class Interruptions:
    """Of the runtime at ``place``; use as a context manager. Not for use by several threads.

    To look at the background worker starts one, so a best-effort request should have come before.
    """

    def __init__(self, place: RuntimePaths) -> None:
        with contextlib.ExitStack() as opened:
            self._observers = [
                opened.enter_context(Observer(place, role))
                for role in (Role.FOREGROUND, Role.BACKGROUND)
            ]
            self._opened = opened.pop_all()
        self._seen = self._counts()

    def has_more(self) -> bool:
        """Whether a run was interrupted since this was asked last."""
        before, self._seen = self._seen, self._counts()
        return self._seen != before

    def _counts(self) -> tuple[int, ...]:
        return tuple(counted(observer.statistics()) for observer in self._observers)

    def __enter__(self) -> Interruptions:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._opened.close()


def counted(samples: Sequence[Sample]) -> int:
    """The sum of a worker's COUNTED: it grows where a run is interrupted, and only there."""
    return sum(sample.values[0] for sample in samples if sample.metric in COUNTED)


def check_interruptions(what: str, interrupted: int, stated: int) -> Check:
    """Fails where fewer than LEAST_SHARE of the ``stated`` ones were real."""
    least = round(LEAST_SHARE * stated)
    name = f"{what} that were really interrupted, of {stated}"
    return Check(name, interrupted, f">= {least}", interrupted >= least)
