"""A local copy of a published model: files that may still be arriving, and which of their chunks
are here.

::

    <cache>/remote/<SHA-256 of the manifest>/
        manifest.json
        origin              the URL that it was opened by last
        progress            a header, then one byte a chunk: 1 if it is here and verified
        whole               present once all files of the model are on the disk, synced, and have
                            been compared with the digests that the manifest lists
        refused             instead of ``whole``: the manifest lists digests of another model
        gathered            all bytes of the model's files that are no weights (``Manifest.head``)
        1/model.onnx ...    the model's files, of their full size from the beginning
        forms/<name>        prepared forms that are arriving

Only the courier (``brisk.sourcing``) writes. Other processes map the files and check ``progress``
before they read: bytes that are not here yet read as zeros. Files have the mode ``paths.KEPT``:
their times change while they arrive, and their digests say what they hold.

A chunk of ``gathered`` counts as here only when its bytes are in the model's files, too: the parts
that identify the model can be read then, long before the chunks that contain them arrive.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from brisk.copies.manifest import ListedFile, Manifest, Range, read_manifest
from brisk.copies.remote import MANIFEST, REFUSED, WHOLE, remote_directory
from brisk.errors import ArtefactError, InvalidModelError
from brisk.ownership import hold, open_own
from brisk.paths import KEPT, is_kept

PROGRESS, GATHERED, ORIGIN = "progress", "gathered", "origin"
MODEL_FOLDER, FORMS_FOLDER = "1", "forms"
MAGIC = b"BRISKCPY"
HEADER_BYTES = 64
_BOOT = Path("/proc/sys/kernel/random/boot_id")

HERE = 1
"""The value of a chunk's byte in ``progress`` once the chunk is here."""


Spans: TypeAlias = "tuple[tuple[int, int], ...]"
"""Ranges of chunks, numbered over all files: the first chunk of each, and that behind its last."""


def progress_header() -> bytes:
    """Return the header of a ``progress`` that is valid for this boot's page cache.

    After the next boot, files are compared with their digests again.
    """
    return (MAGIC + _BOOT.read_text().strip().encode()).ljust(HEADER_BYTES, b"\0")


class LocalCopy:
    """A copy in its folder, as processes other than the courier see it. Thread-safe.

    No process removes the copy before it is closed.
    """

    def __init__(self, folder: Path) -> None:
        """Lock the copy and read its manifest.

        Raises FileNotFoundError if there is no copy, ArtefactError if it cannot be used,
        InvalidModelError if it was refused, PermissionError if another user could have written it.
        """
        self.folder = folder
        self._numbers: dict[Path, int | None] = {}
        with open(open_own(folder / MANIFEST), "rb") as file:
            text = file.read()
            self._lock = os.dup(file.fileno())
        try:
            if not hold(self._lock):
                raise FileNotFoundError(f"{folder} is being removed")
            check_not_refused(folder)
            try:
                self.manifest = read_manifest(text, folder.name)
            except InvalidModelError as error:
                raise ArtefactError(f"{folder}: {error}") from error
            if not self.is_compared:
                for number in (*self.manifest.own, self.manifest.gathered):
                    check_marked(self.path(number))
            self._starts = list(chunk_starts(self.manifest))
            self._progress = self._map_progress()
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Release the lock, so that the copy may be removed."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            self.close()

    @property
    def model(self) -> Path:
        return self.path(self.manifest.model)

    def path(self, number: int) -> Path:
        return path_in(self.folder, self.manifest, number)

    def digests(self) -> dict[str, str]:
        """Return the digests of the model's files by their names, as
        ``artefacts.content.content_of`` has them."""
        manifest, folder = self.manifest, self.model.parent
        names = {number: os.path.relpath(self.path(number), folder) for number in manifest.own}
        names[manifest.model] = ""
        return {names[number]: manifest.files[number].digest for number in manifest.own}

    def number_of(self, path: Path) -> int | None:
        """Return the number of one of the copy's files; None: ``path`` is another file."""
        if path not in self._numbers:  # once for a file, of which a start reads many parts
            real = os.path.realpath(path)
            numbers = range(len(self.manifest.files))
            same = (each for each in numbers if os.path.realpath(self.path(each)) == real)
            self._numbers[path] = next(same, None)
        return self._numbers[path]

    @property
    def has_head(self) -> bool:
        """Whether all but the weights can be read."""
        return self.is_compared or self.is_here(self.spans([self.manifest.gathered_range]))

    @property
    def is_whole(self) -> bool:
        """Whether every byte of the model's own files is here."""
        return self.is_compared or self.is_here(self.spans(self.all_of_it))

    @property
    def is_compared(self) -> bool:
        """Whether all of that is on the disk and has been compared with the listed digests."""
        return (self.folder / WHOLE).exists()

    @property
    def all_of_it(self) -> list[Range]:
        """The ranges of every byte of the model's own files."""
        files = self.manifest.files
        return [Range(number, 0, files[number].size) for number in self.manifest.own]

    def spans(self, parts: Iterable[Range]) -> Spans:
        """Return the chunks that contain these bytes."""
        numbers = {
            self._starts[part.file] + chunk
            for part in parts
            for chunk in self.manifest.chunks_of(part)
        }
        stretches: list[tuple[int, int]] = []
        for number in sorted(numbers):
            if stretches and stretches[-1][1] == number:
                stretches[-1] = stretches[-1][0], number + 1
            else:
                stretches.append((number, number + 1))
        return tuple(stretches)

    def is_here(self, spans: Spans) -> bool:
        """Whether all of these chunks can be read."""
        return self.missing_bytes(spans) == 0

    def missing_bytes(self, spans: Spans) -> int:
        """Return the bytes of the chunks that are not here, with the last chunk of a file as a
        whole one."""
        count = 0
        for start, end in spans:
            noted = self._progress[HEADER_BYTES + start : HEADER_BYTES + end]
            count += end - start - noted.count(HERE)
        return count * self.manifest.chunk_bytes

    def _map_progress(self) -> mmap.mmap | bytes:
        try:
            return self._mapped(HEADER_BYTES + self._starts[-1])
        except (OSError, ArtefactError, ValueError):
            if not self.is_compared:
                raise
        own = set(self.manifest.own)  # of forms nothing is known
        chunks = (
            bytes([HERE * (number in own)]) * self.manifest.chunk_count(number)
            for number in range(len(self.manifest.files))
        )
        return bytes(HEADER_BYTES) + b"".join(chunks)

    def _mapped(self, count: int) -> mmap.mmap:
        with open(open_own(self.folder / PROGRESS), "rb") as file:
            if os.fstat(file.fileno()).st_size != count:
                raise ArtefactError(f"{self.folder}: its progress is not of {count} bytes")
            mapped = mmap.mmap(file.fileno(), count, prot=mmap.PROT_READ)
        if mapped[:HEADER_BYTES] != progress_header():
            raise ArtefactError(f"{self.folder}: it is to be verified after a boot")
        return mapped


def path_in(folder: Path, manifest: Manifest, number: int) -> Path:
    """Return the path of a file of the manifest in a copy in ``folder``."""
    file = manifest.files[number]
    if number == manifest.gathered:
        return folder / GATHERED
    if file.form:
        return folder / FORMS_FOLDER / file.form
    return folder / MODEL_FOLDER / file.name


def check_marked(path: Path) -> None:
    """Check that a file of a copy that is not whole has the mode of arriving ones.

    Without it, it counts as any other file, and what has not arrived as zeros. Raises
    ArtefactError that names it, OSError if it is missing.
    """
    status = os.stat(path)
    if not is_kept(status):
        raise ArtefactError(
            f"{path} is of a copy that is not whole, and has mode {status.st_mode & 0o7777:04o} "
            f"instead of {KEPT:04o}, which the courier puts back when the entry is loaded"
        )


def check_marked_at(path: Path, environment: Mapping[str, str] = os.environ) -> None:
    """``check_marked`` for any file; nothing is wrong with one that is of no copy, or of one that
    is whole. Raises like ``listed``, too."""
    folder = copy_folder(path, environment)
    if folder is None or (folder / WHOLE).exists():
        return
    entry = listed(path, environment)
    if entry is not None and not entry.form:  # forms lose it when they become artefacts
        check_marked(path)


def check_not_refused(folder: Path) -> None:
    """Raise InvalidModelError if the copy's manifest was found to list another model's digests."""
    with contextlib.suppress(FileNotFoundError):
        raise InvalidModelError(f"{folder}: {(folder / REFUSED).read_text()}")


def chunk_starts(manifest: Manifest) -> Iterator[int]:
    """Yield the number of each file's first chunk among all chunks, then the number of all."""
    start = 0
    for number in range(len(manifest.files)):
        yield start
        start += manifest.chunk_count(number)
    yield start


def copy_folder(path: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of the copy that contains a file, links followed; None: no copy does."""
    base = Path(os.path.realpath(remote_directory(environment)))
    try:
        parts = Path(os.path.realpath(path)).relative_to(base).parts
    except ValueError:
        return None
    return base / parts[0] if len(parts) > 1 else None


def is_compared(path: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether ``path`` lies in a copy whose digests have been compared with its bytes."""
    folder = copy_folder(path, environment)
    return folder is not None and (folder / WHOLE).exists()


def copy_of(path: Path) -> LocalCopy | None:
    """Return the copy that contains ``path``; None: no copy does. Raises like ``LocalCopy``."""
    folder = copy_folder(path)
    return None if folder is None else LocalCopy(folder)


def listed(path: Path, environment: Mapping[str, str] = os.environ) -> ListedFile | None:
    """Return the manifest's entry of a file of a copy; None: it is another file.

    Raises like ``LocalCopy``, but not for a copy that is to be verified after a boot: its content
    is known all the same.
    """
    folder = copy_folder(path, environment)
    if folder is None:
        return None
    with open(open_own(folder / MANIFEST), "rb") as file:
        try:
            manifest = read_manifest(file.read(), folder.name)
        except InvalidModelError as error:
            raise ArtefactError(f"{folder}: {error}") from error
    for number, each in enumerate(manifest.files):
        if path_in(folder, manifest, number) == Path(os.path.realpath(path)):
            return each
    return None
