"""The end of a copy's fetch: what has come is compared with the manifest's claims, and only then
is the copy whole and its prepared forms are published.

A manifest lists a digest and a sketch of each file, by which artefacts of the model are found
(``artefacts.content``). Its chunks' SHA-256 vouch for the bytes, not for these: an author could
list another model's, whose artefacts this model would use, and replace. So the courier computes
them of the bytes, behind the last chunk and in threads of low priority: a start that began while
the copy arrived waits for nothing of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from brisk.artefacts.content import note_names
from brisk.artefacts.room import make_room
from brisk.artefacts.store import artefacts_directory
from brisk.copies.local import path_in
from brisk.errors import ArtefactError, BriskError, InvalidModelError, UnavailableError
from brisk.os_priority import at_loading_priority
from brisk.ownership import make_private
from brisk.sourcing.arriving import ArrivingCopy
from brisk.sourcing.log import LOGGER
from brisk.sourcing.policies.stretches import bits_of


class Completion:
    """The completion of one copy. Used from one event loop only."""

    def __init__(
        self,
        copy: ArrivingCopy,
        in_thread: Callable[..., asyncio.Future[Any]],
        fail: Callable[[BriskError], None],
    ) -> None:
        """``in_thread``: runs a function with its arguments in a thread. ``fail``: called with the
        error if the copy must not be used."""
        self._copy = copy
        self._in_thread = in_thread
        self._fail = fail
        self._is_whole = copy.is_whole
        self._comparing: asyncio.Future[Any] | None = None
        self._refusal: InvalidModelError | None = None
        self._is_closing = False
        self._here = 0
        self._forms: Collection[int] = ()
        self._published: set[int] = set()

    @property
    def is_going_on(self) -> bool:
        """Whether the copy is being compared."""
        return self._comparing is not None

    def close(self) -> None:
        """End the comparison soon, without a result; the next fetch of the copy begins anew."""
        self._is_closing = True

    def check(self) -> None:
        """Raise InvalidModelError if the manifest lists other digests than the bytes have."""
        if self._refusal is not None:
            raise self._refusal

    def note(self, here: int, forms: Collection[int]) -> None:
        """Begin the comparison once all of the model's own files are here; once the copy is whole,
        publish those of ``forms`` that are here, too.

        ``here``: the set of chunks that have arrived. ``forms``: file numbers.
        """
        self._here, self._forms = here, forms
        if self._is_whole:
            for number in forms:
                if number not in self._published and self._has_all(number):
                    self._published.add(number)
                    self._in_thread(publish_form, self._copy, number).add_done_callback(self._told)
            return
        is_due = not self._copy.layout.own & ~here and not self._is_closing
        if is_due and self._comparing is None and self._refusal is None:
            finish = self._copy.finish
            self._comparing = self._in_thread(at_loading_priority, lambda: finish(self._go_on))
            self._comparing.add_done_callback(self._compared)

    async def wait(self, every_s: float) -> AsyncIterator[None]:
        """Wait until the copy is whole; yield each ``every_s``. Precondition: all of the model's
        own files are here.

        Raises InvalidModelError as ``check`` does, UnavailableError if the copy cannot be written
        or is closed.
        """
        while not self._is_whole:
            self.check()
            self.note(self._here, self._forms)
            if self._comparing is None:
                raise UnavailableError(f"{self._copy.folder}: not all of it is here")
            done, _ = await asyncio.wait([self._comparing], timeout=every_s)
            if done and not self._is_whole and self._refusal is None:
                raise UnavailableError(f"{self._copy.folder} cannot be completed")
            yield
        self.check()

    def _has_all(self, number: int) -> bool:
        return not bits_of(self._copy.layout.file(number)) & ~self._here

    def _go_on(self) -> None:
        """Raise UnavailableError if the copy is about to be closed. Any thread."""
        if self._is_closing:
            raise UnavailableError(f"{self._copy.folder} is closed before it was compared")

    def _compared(self, comparing: asyncio.Future[Any]) -> None:
        self._comparing = None
        self._told(comparing)
        if not comparing.cancelled() and isinstance(
            error := comparing.exception(), InvalidModelError
        ):
            self._refusal = error
            self._fail(error)
        self._is_whole = self._copy.is_whole
        if self._is_whole:
            self.note(self._here, self._forms)

    def _told(self, done: asyncio.Future[Any]) -> None:
        """Log an OSError: what is not written now is written by a later fetch."""
        if not done.cancelled() and isinstance(error := done.exception(), OSError):
            LOGGER.warning(f"{self._copy.folder}: {error}")


def publish_form(copy: ArrivingCopy, number: int) -> None:
    """Publish a completely fetched prepared form among the artefacts of the model.

    The artefact is a hard link to the same file, with the mode of artefacts, so that its stamp
    then has times. Processes that have mapped the file go on; notes under its old stamp no longer
    count. From then on it counts among artefacts, and others are removed for it. Raises OSError,
    NoRoomError if that is not enough; ArtefactError if the copy is not whole: the artefacts might
    be another model's.
    """
    if not copy.is_whole:
        raise ArtefactError(f"{copy.folder} is not whole")
    files = copy.manifest.files
    model, form = files[copy.manifest.model], path_in(copy.folder, copy.manifest, number)
    folder = artefacts_directory() / model.sketch / model.digest
    artefact = folder / files[number].form
    make_private(artefacts_directory())
    if not artefact.exists():
        make_room(files[number].size)
    make_private(folder)
    above = os.path.dirname(model.name)
    names = (
        os.path.relpath(files[own].name, above or ".")
        for own in copy.manifest.own
        if own != copy.manifest.model
    )
    note_names(folder, [name for name in names if not name.startswith("../")])
    descriptor = os.open(form, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    with contextlib.suppress(FileExistsError):
        os.link(form, artefact)
