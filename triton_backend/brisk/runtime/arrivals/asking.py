"""Requests bytes from the courier, and restarts the courier if it ends meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from brisk.copies.connection import CourierEndedError, asked_again
from brisk.copies.courier import STALLED_S, Courier, FetchProgress
from brisk.copies.local import LocalCopy
from brisk.copies.manifest import Range
from brisk.copies.remote import Remote
from brisk.errors import BriskError

_RETRY_S = 0.5


class CopyRequester:
    """A connection to the courier that has opened ``copy``, made on demand. One thread uses it."""

    def __init__(self, copy: LocalCopy) -> None:
        self._copy = copy
        self._sha256 = copy.folder.name
        self._courier: Courier | None = None

    def close(self) -> None:
        if self._courier is not None:
            self._courier.close()
            self._courier = None

    def connect(self) -> Courier:
        """Return the connection; make it if there is none. Raises OSError, and BriskError if the
        copy cannot be fetched any more."""
        if self._courier is None:
            self._courier = asked_again(self._opened)
        return self._courier

    def _opened(self) -> Courier:
        courier = Courier()
        try:
            courier.open(Remote("", self._sha256))
        except BaseException:
            courier.close()
            raise
        return courier

    def take(self, form: str, *, is_begun: bool) -> Path | None:
        """Return the prepared form, as ``Courier.take`` does. Raises BriskError and OSError."""

        def ask() -> Path | None:
            try:
                return self.connect().take(self._sha256, form, is_begun=is_begun)
            except CourierEndedError:
                self.close()
                raise

        return asked_again(ask)

    def wait(
        self,
        wanted: Sequence[Range],
        is_over: Callable[[], bool],
        tell: Callable[[FetchProgress, bool], None],
        stalled: Callable[[str], None],
    ) -> bool:
        """Block until all of ``wanted`` is here; return False if ``is_over`` is true before.

        A courier that ends is started again. ``tell``: gets the progress, and whether it is
        further than before. ``stalled``: gets the reason if nothing has come for ``STALLED_S``.
        """
        since_s, least = time.monotonic(), sum(part.size for part in wanted) + 1
        while not is_over():
            problem = ""
            try:
                for progress in self._asked(wanted):
                    if is_over():
                        return False
                    problem, is_further = progress.problem, progress.missing_bytes < least
                    tell(progress, is_further)
                    if is_further:
                        least, since_s = progress.missing_bytes, time.monotonic()
                    elif time.monotonic() - since_s > STALLED_S:
                        stalled(problem)
                return True
            except (BriskError, OSError) as error:
                if time.monotonic() - since_s > STALLED_S:
                    stalled(str(error))
                self.close()
                time.sleep(_RETRY_S)
        return False

    def _asked(self, wanted: Sequence[Range]) -> Iterator[FetchProgress]:
        if self._copy.is_here(self._copy.spans(wanted)):
            return iter(())
        return self.connect().wait(self._sha256, wanted)
