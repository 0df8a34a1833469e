"""A copy that the courier writes: verified chunks, and nothing else.

Layout and meaning of the files: ``brisk.copies.local``. A copy is made with its full size on the
disk, so that no chunk fails later for lack of space. Its ``manifest.json`` comes last, by
renaming: without it there is no copy. A published prepared form has no seal
(``artefacts.container``). On disk it has this machine's seal; ``read`` returns it as published.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from brisk.artefacts.content import check_listed
from brisk.artefacts.seals import SEAL, manifest_size, sealed
from brisk.artefacts.store import sync_directory
from brisk.copies.local import (
    HEADER_BYTES,
    HERE,
    PROGRESS,
    check_not_refused,
    path_in,
    progress_header,
)
from brisk.copies.manifest import Range, read_manifest
from brisk.copies.remote import MANIFEST, REFUSED, WHOLE, whole_note
from brisk.errors import ArtefactError, InvalidModelError, UnavailableError
from brisk.ownership import check_directory, open_own
from brisk.paths import KEPT, is_kept
from brisk.sourcing.policies.stretches import Layout


class ArrivingCopy:
    """A copy that is being written into its folder. Any thread may call ``put`` and ``read``."""

    def __init__(self, folder: Path) -> None:
        """Open the copy.

        Raises OSError; PermissionError if another user could have written the copy; ArtefactError
        if it cannot be used, or a file of the model is missing; InvalidModelError if it was
        refused; BlockingIOError if it is being removed; UnavailableError if it is to be compared
        with its digests and somebody else has it open.
        """
        self.folder = folder
        self._files: dict[int, int] = {}
        self._lock = open_own(folder / MANIFEST)
        """The manifest's descriptor, locked shared: no process removes a copy in use."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with open(os.dup(self._lock), "rb") as file:
                self.text = file.read()
            if not os.fstat(self._lock).st_nlink:
                raise BlockingIOError(f"{folder} is being removed")
            check_not_refused(folder)
            try:
                self.manifest = read_manifest(self.text, folder.name)
            except InvalidModelError as error:
                raise ArtefactError(f"{folder}: {error}") from error
            self._check_files()
            self._put_marks_back()
            self.layout = Layout(self.manifest)
            sizes = (part.size for part in self.manifest.head)
            self._head_starts = list(accumulate(sizes, initial=0))[:-1]
            """Where each range of the head begins in the file ``gathered``."""
            self._covered = list(self.layout.covered())[::-1]
            self._progress, self.is_trusted = self._map()
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        self._progress.close()
        for descriptor in (*self._files.values(), self._lock):
            os.close(descriptor)
        self._files.clear()

    @property
    def is_closed(self) -> bool:
        return self._progress.closed

    @property
    def model(self) -> Path:
        return path_in(self.folder, self.manifest, self.manifest.model)

    @property
    def is_whole(self) -> bool:
        """Whether all of the model's own files are on the disk, and what the manifest lists."""
        return (self.folder / WHOLE).exists()

    @property
    def is_refused(self) -> bool:
        return (self.folder / REFUSED).exists()

    def here(self) -> int:
        """Return the set of chunks that are on the disk."""
        text = self._progress[HEADER_BYTES:].translate(_DIGITS)[::-1]
        return int(text, 2) if text else 0

    def verify(self) -> Iterator[int]:
        """Compare the chunks on the disk with their digests after a boot, and note the right ones.

        Yields after each compared chunk, so that other work can run; if it is left there, the next
        opening begins anew. Raises OSError.
        """
        compared = self.manifest.own if self.is_whole else ()
        for number in compared:  # first: nothing is written where a chunk is noted
            self._note(*self.layout.file(number))
        for number in range(len(self.manifest.files)):
            chunks = self.layout.file(number)
            if number in compared or not path_in(self.folder, self.manifest, number).exists():
                continue
            for index in range(chunks.start, chunks.end):
                part = self.layout.range_of(index)
                if not self._is_hole(part):
                    data = self.read(*part)
                    if hashlib.sha256(data).digest() == self._digest(index):
                        self._scatter(part, data)
                        self._note(index, index + 1)
                    yield index
        self._progress[:HEADER_BYTES] = progress_header()
        self.is_trusted = True

    def put(self, index: int, pieces: Sequence[bytes | memoryview]) -> bool:
        """Write a chunk, given in ``pieces``. Return False, and write nothing, if it has another
        digest.

        Raises OSError.
        """
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        if digest.digest() != self._digest(index):
            return False
        part = self.layout.range_of(index)
        if self.manifest.files[part.file].form and part.offset < SEAL.stop:
            pieces = [sealed(b"".join(pieces))]
        if part.file == self.manifest.gathered:
            self._scatter(part, b"".join(pieces))
        _write_at(self._open(part.file), pieces, part.offset)
        self._note(index, index + 1)
        return True

    def note_covered(self) -> int:
        """Note and return the chunks of the model's files that the head on the disk already
        completes: no source need send them.

        They are compared with their digests. Raises OSError.
        """
        complete = 0
        gathered = self.manifest.gathered
        while self._covered and self._is_here(Range(gathered, 0, self._covered[-1][1])):
            index, _ = self._covered.pop()
            if self._is_right(index):
                self._note(index, index + 1)
                complete |= 1 << index
        return complete

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Return bytes of a file as they were published. Raises OSError."""
        data = os.pread(self._open(number), size, offset)
        if self.manifest.files[number].form and offset < SEAL.stop:
            zeros = bytearray(data)
            start, end = max(SEAL.start - offset, 0), min(SEAL.stop - offset, len(data))
            zeros[start:end] = bytes(max(end - start, 0))
            return bytes(zeros)
        return data

    def read_now(self, number: int, offset: int, size: int) -> bytearray | None:
        """Return the same bytes as ``read``, or None if that might wait for the disk."""
        if self.manifest.files[number].form and offset < SEAL.stop:
            return None
        buffer = bytearray(size)
        try:
            count = os.preadv(self._open(number), [buffer], offset, os.RWF_NOWAIT)
        except OSError:  # it is not in memory, or the file system cannot tell
            return None
        return buffer if count == size else None

    def reserve_form(self, number: int) -> None:
        """Reserve space for a prepared form. On failure nothing is left; raises OSError."""
        file = self.manifest.files[number]
        path = path_in(self.folder, self.manifest, number)
        if not path.exists():
            reserve(path, file.size)

    def outline(self, number: int) -> tuple[Range, ...]:
        """Return the ranges of a prepared form that say where its parts lie.

        These are its header and, once the header is on the disk, its own manifest, at the file's
        end. Raises ArtefactError if it is no prepared form.
        """
        size = self.manifest.files[number].size
        front = Range(number, 0, min(SEAL.stop, size))
        if not self._is_here(front):
            return (front,)
        try:
            length = manifest_size(self.read(*front), size)
        except ArtefactError as error:
            raise ArtefactError(f"'{self.manifest.files[number].name}': {error}") from error
        return front, Range(number, size - length, length)

    def finish(self, go_on: Callable[[], None] = lambda: None) -> None:
        """Compare all of the model's own files with the digests and sketches that the manifest
        lists, sync them to the disk, and note that the copy is whole.

        If they differ, that is noted instead, and the copy cannot be opened any more. ``go_on`` as
        in ``check_listed``. Raises InvalidModelError in that case; OSError, also if a file was
        damaged after its chunks were written: the next opening compares these again.
        Precondition: all their chunks are written.
        """
        for number in self.manifest.own:
            try:
                check_listed(self._open(number), self.manifest.files[number], go_on)
            except InvalidModelError as error:
                if not all(map(self._is_right, range(*self.layout.file(number)))):
                    self._progress[:HEADER_BYTES] = bytes(HEADER_BYTES)
                    name = path_in(self.folder, self.manifest, number)
                    raise OSError(errno.EIO, "it was damaged", str(name)) from error
                write_small(self.folder / REFUSED, str(error).encode(), is_synced=True)
                raise
        for number in (*self.manifest.own, self.manifest.gathered):
            os.fsync(self._open(number))
        note = whole_note(self.model.relative_to(self.folder), self.text)
        write_small(self.folder / WHOLE, note, is_synced=True)
        for each in (self.folder, self.folder.parent):
            sync_directory(each)

    def _check_files(self) -> None:
        """Raise ArtefactError unless all files that a copy is made with are of their full size."""
        for number in (*self.manifest.own, self.manifest.gathered):
            path = path_in(self.folder, self.manifest, number)
            try:
                size = path.stat().st_size
            except FileNotFoundError as error:
                raise ArtefactError(f"{path} is missing") from error
            if size != self.manifest.files[number].size:
                raise ArtefactError(f"{path} is of {size} bytes")

    def _put_marks_back(self) -> None:
        """Give all files whose bytes may still arrive their mode again, if something has changed
        it. Raises OSError.

        Those of a whole copy stay as they are, and forms that are also artefacts: processes know
        them by their stamps, of which the mode decides.
        """
        for number in range(len(self.manifest.files)):
            path = path_in(self.folder, self.manifest, number)
            is_form = bool(self.manifest.files[number].form)
            if (self.is_whole and not is_form) or (is_form and not path.exists()):
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                status = os.fstat(descriptor)
                if status.st_nlink == 1 and not is_kept(status):
                    _mark(descriptor, path)
            finally:
                os.close(descriptor)

    def _scatter(self, part: Range, data: bytes) -> None:
        """Write bytes of the file ``gathered`` to their places in the model's files, except where
        a verified chunk is already."""
        if part.file != self.manifest.gathered:
            return
        end = part.offset + part.size
        first = max(bisect_right(self._head_starts, part.offset) - 1, 0)
        for start, place in zip(
            self._head_starts[first:], self.manifest.head[first:], strict=True
        ):
            if start >= end:
                return
            begin, stop = max(start, part.offset), min(start + place.size, end)
            if begin < stop:
                target = Range(place.file, place.offset + begin - start, stop - begin)
                if not self._is_here(target):
                    piece = data[begin - part.offset : stop - part.offset]
                    _write_at(self._open(place.file), [piece], target.offset)

    def _is_right(self, index: int) -> bool:
        """Whether a chunk on the disk has its digest."""
        data = self.read(*self.layout.range_of(index))
        return hashlib.sha256(data).digest() == self._digest(index)

    def _digest(self, index: int) -> bytes:
        return self.manifest.chunk_digest(*self.layout.place(index))

    def _is_here(self, part: Range) -> bool:
        chunks = self.layout.stretch(part)
        here = self._progress[HEADER_BYTES + chunks.start : HEADER_BYTES + chunks.end]
        return here == bytes([HERE]) * chunks.chunks

    def _is_hole(self, part: Range) -> bool:
        """Whether nothing was ever written to ``part``."""
        try:
            data_start = os.lseek(self._open(part.file), part.offset, os.SEEK_DATA)
        except OSError:  # there is none behind it
            return True
        return data_start >= part.offset + part.size

    def _note(self, start: int, end: int) -> None:
        self._progress[HEADER_BYTES + start : HEADER_BYTES + end] = bytes([HERE]) * (end - start)

    def _open(self, number: int) -> int:
        descriptor = self._files.get(number)
        if descriptor is None:
            if self.is_closed:
                raise OSError(errno.EBADF, "the copy is closed", str(self.folder))
            path = path_in(self.folder, self.manifest, number)
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            opened = os.open(path, flags)
            descriptor = self._files.setdefault(number, opened)
            if descriptor != opened:  # another thread was first
                os.close(opened)
        return descriptor

    def _map(self) -> tuple[mmap.mmap, bool]:
        """Map the progress file; return the map, and whether it is of this boot. Else it is
        emptied, and of no boot before ``verify`` has ended.

        The map holds a shared lock: what somebody else has mapped is not emptied, but
        UnavailableError raised. Precondition: the caller holds ``room.locked``.
        """
        check_directory(self.folder)
        count = HEADER_BYTES + self.layout.count
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(self.folder / PROGRESS, flags, 0o600), "r+b") as file:
            is_of_this_boot = (
                file.read(HEADER_BYTES) == progress_header()
                and os.fstat(file.fileno()).st_size == count
            )
            try:
                kind = fcntl.LOCK_SH if is_of_this_boot else fcntl.LOCK_EX
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UnavailableError(
                    f"{self.folder} is used by another process, which still compares it with its "
                    "digests, or by another machine: each needs a cache of its own"
                ) from error
            if not is_of_this_boot:
                file.seek(0)
                file.write(bytes(count))  # in place: other processes may have mapped the old ones
                file.truncate()
                fcntl.flock(file, fcntl.LOCK_SH)
            return mmap.mmap(file.fileno(), count), is_of_this_boot


_DIGITS = bytes([ord("0"), ord("1")]) + b"0" * 254
"""The translation table from the bytes of ``progress`` to binary digits."""


def reserve(path: Path, size: int) -> None:
    """Make a file for arriving bytes, with space for all. Raises OSError, and leaves none then."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
        _mark(descriptor, path)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def _mark(descriptor: int, path: Path) -> None:
    """Give a file the mode of those whose bytes may still arrive. Raises OSError, also if the file
    system does not keep it: readers would take zeros for bytes."""
    os.fchmod(descriptor, KEPT)
    if not is_kept(os.fstat(descriptor)):
        problem = f"the file system does not keep the mode {KEPT:04o}"
        raise OSError(errno.ENOTSUP, problem, str(path))


def write_small(path: Path, data: bytes, *, is_synced: bool = False) -> None:
    """Write a file of mode 0600. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        if is_synced:
            os.fsync(file.fileno())


def _write_at(descriptor: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
    remaining = [memoryview(piece) for piece in pieces]
    while remaining:
        written = os.pwritev(descriptor, remaining[:1024], offset)
        offset += written
        while remaining and written >= len(remaining[0]):
            written -= len(remaining.pop(0))
        if written:
            remaining[0] = remaining[0][written:]
