"""Whether what a model has started with is sound: looked into behind its sessions, before answers.

Comparing weights with their checksums takes as long as reading them, 15 ms for 100 MB. Sessions
are made and run meanwhile, and no frame ends before all has been compared. One that has computed
with damaged weights begins again with what takes their place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from brisk.errors import BriskError, InternalError
from brisk.segments.onnxruntime.session import Session
from brisk.segments.source import Source


def _at_once() -> None:
    return None


class Confirmation:
    """Of one model. Thread-safe."""

    def __init__(
        self, source: Source, count: int, replace: Callable[[int, Session], None]
    ) -> None:
        """``count``: of segments. ``replace`` puts another session in a segment's place."""
        self._source: Source | None = source
        self._replace = replace
        self._pending = list(reversed(range(count)))
        self._at_work = 0
        self._changed = threading.Condition()
        self._error: BriskError | None = None
        self.replaced = 0
        """How many segments have another session by now than they were loaded with."""

    @property
    def is_over(self) -> bool:
        """Whether every segment is known to be sound, or has been replaced."""
        return not self._pending and not self._at_work and self._error is None

    def work(self, give_way: Callable[[], None] = _at_once) -> None:
        """Confirm segments until none is left that nobody has begun. They must be loaded.

        ``give_way`` is called before each, and may block for a while.
        """
        while self._pending:
            give_way()
            with self._changed:
                if not self._pending:
                    return
                index = self._pending.pop()
                self._at_work += 1
            error: BriskError | None = None
            session: Session | None = None
            source = self._source
            assert source is not None  # it is let go of behind the last segment
            try:
                session = source.confirm(index)
                if session is not None:
                    self._replace(index, session)
            except BriskError as raised:
                error = raised
            except Exception as raised:  # noqa: BLE001  # unconfirmed is not sound
                text = f"segment {index} cannot be confirmed: {type(raised).__name__}: {raised}"
                error = InternalError(text)
            with self._changed:
                self._at_work -= 1
                self.replaced += session is not None
                self._error = self._error or error
                if not self._pending and not self._at_work:
                    self._source = None  # and with it of the file that it maps
                self._changed.notify_all()

    def finish(self) -> None:
        """Until every segment is confirmed. Raises BriskError where a damaged one has nothing that
        could take its place.
        """
        self.work()
        with self._changed:
            self._changed.wait_for(lambda: not self._at_work)
        if self._error is not None:
            raise self._error
