"""The file of an artefact: a header, a JSON manifest, and blobs that are mapped, not read.

::

    0    magic (8) | format (8) | manifest bytes (8) | file bytes (8)
    32   BLAKE2 of the manifest (32) | keyed BLAKE2 of the 64 bytes before (32)
    96   blobs in the order they are used, each at a multiple of 64 bytes, large ones of a page
    ...  manifest: UTF-8 JSON {"blobs": [[offset, size, checksum], ...], "content": ...}

Everything that is read is checked against the file's real size before it is used. A blob of plain
numbers has a checksum against damage. A blob that is indexed or parsed by has a BLAKE2 digest
instead, which the seal covers with the rest of the manifest. The key of the seal lies in the cache
directory, with mode 0600, and is made when the first artefact is written. A process that cannot
read the key can make no artefact. A digest without a key shows damage only: anyone can compute one
for other bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import mmap
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from brisk.artefacts import lease, store
from brisk.artefacts.seals import (
    DIGEST_BYTES,
    FORMAT,
    MAGIC,
    MOST_MANIFEST_BYTES,
    make_key,
    read_key,
    seal,
)
from brisk.errors import ArtefactError
from brisk.ownership import hold, open_own
from brisk.paths import is_kept

PAGE_BYTES = 4096
_START = struct.Struct("<8sQQQ32s")
HEADER_BYTES = _START.size + DIGEST_BYTES
ALIGNMENT = 64

_DIGITS = 2 * DIGEST_BYTES


class BlobPlace(NamedTuple):
    """The place of a blob in its file, in bytes, and its checksum, which is a BLAKE2 digest if it
    has ``_DIGITS`` digits."""

    offset: int
    size: int
    checksum: str


_SHARED_WORK_BYTES = 8 << 20
"""The fewest bytes that two threads verify; one thread verifies fewer."""


class Container:
    """An artefact's file, mapped read-only and shared with every process that maps it.

    Views of its blobs keep the mapping alive, even after the file has been replaced. The file is
    only ever replaced as a whole, never written to. Thread-safe.
    """

    def __init__(self, path: Path, environment: Mapping[str, str] = os.environ) -> None:
        """Map the file and check header and manifest; no blob is touched.

        ``environment``: that of the process whose key seals the file. Raises ArtefactError if the
        file is damaged, cut off, of another format, sealed with another key or being removed,
        OSError if it cannot be opened, PermissionError if another user could have written it or
        the key.
        """
        self.path = path
        with open(open_own(path), "rb") as file:
            if not hold(file.fileno()):
                raise ArtefactError(f"{path}: it is being removed")
            size = os.fstat(file.fileno()).st_size
            if size < HEADER_BYTES:
                raise ArtefactError(f"{path}: {size} bytes are no artefact")
            self._map = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
            self.memory = np.frombuffer(self._map, np.uint8)
            """All bytes of the file, read-only, in place."""
            manifest = self._manifest(size, environment)
            self.content: Any = manifest.get("content")
            self._blobs = self._places(manifest.get("blobs"), size)
            self._taken_ns = time.time_ns()
            self._status = os.fstat(file.fileno())
            self.is_kept = is_kept(self._status)
            """Whether it is a file of a copy, whose bytes may still arrive (``brisk.copies``)."""
            self.leased: lease.LeasedMap | None = None
            if not self.is_kept:
                self.leased = lease.hold(file.fileno(), self._map, self.memory.ctypes.data)
            if self._status.st_size != size:
                raise ArtefactError(f"{path}: it is being written")
        self._unseen: set[int] = set()
        if not store.is_verified(path, self._status):
            self._unseen.update(range(len(self._blobs)))
        self._is_noted = not self._unseen
        if not self.is_kept:
            self._map.madvise(mmap.MADV_WILLNEED)

    def __len__(self) -> int:
        return len(self._blobs)

    def verify(self, number: int) -> None:
        """Compare a blob with its checksum, unless that was done since the machine started.

        Raises ArtefactError if it differs.
        """
        self.place(number)
        if number not in self._unseen:
            return
        self.compare(number)
        self._unseen.discard(number)
        # blobs with a digest do not count: ``copied`` compares them each time
        checksums = (self._blobs[each].checksum for each in list(self._unseen))
        if not self._is_noted and all(len(each) == _DIGITS for each in checksums):
            self._is_noted = True
            store.note_verified(self.path, self._status, self._taken_ns)

    def vouch_for(self, number: int) -> None:
        """Count a blob as verified: its content was compared with a digest elsewhere."""
        self._unseen.discard(number)

    def compare(self, number: int) -> None:
        """Compare a blob with its checksum now. Raises ArtefactError if it differs."""
        place = self.place(number)
        content = self.view(number)
        is_digest = len(place.checksum) == _DIGITS
        actual = _blake2b(content.data).hexdigest() if is_digest else checksum(content)
        if actual != place.checksum:
            raise ArtefactError(f"{self.path}: blob {number} at {place.offset} is damaged")

    def verify_all(self, numbers: Sequence[int], threads: int) -> None:
        """Verify each blob, on two threads if ``threads`` allows it and the blobs are large
        together.

        One thread reads some 9 GB a second, and the load waits for it.
        """
        unseen = [number for number in numbers if number in self._unseen]
        total = sum(self.place(number).size for number in unseen)
        if threads < 2 or total < _SHARED_WORK_BYTES:
            for number in unseen:
                self.verify(number)
            return
        queue, errors = deque(unseen), list[ArtefactError]()

        def work() -> None:
            while queue and not errors:
                try:
                    self.verify(queue.popleft())
                except IndexError:  # the other thread took the last one
                    return
                except ArtefactError as error:
                    errors.append(error)

        helper = threading.Thread(target=work, name="brisk-verify", daemon=True)
        helper.start()
        work()
        helper.join()
        if errors:
            raise errors[0]

    def copied(self, number: int) -> bytes:
        """Return the bytes of a blob that was added as ``is_indexed``.

        They are copied and then checked, so that what is checked is what is used, whatever becomes
        of the file. Raises ArtefactError if the blob differs from what was written, or was added
        otherwise.
        """
        place = self.place(number)
        content = self.view(number).tobytes()
        if _blake2b(content).hexdigest() != place.checksum:
            raise ArtefactError(f"{self.path}: blob {number} at {place.offset} is damaged")
        return content

    def view(self, number: int) -> np.ndarray:
        """Return a blob's bytes, read-only, in place. Raises ArtefactError if there is no such
        blob."""
        place = self.place(number)
        return self.memory[place.offset : place.offset + place.size]

    def drop_pages(self, number: int) -> None:
        """Release this process's pages of a blob; reading the blob again costs page faults."""
        place = self.place(number)
        if self.leased is not None:
            self.leased.drop_pages(place.offset, place.size)

    def place(self, number: int) -> BlobPlace:
        """Return the place of a blob. Raises ArtefactError if there is no such blob."""
        if not 0 <= number < len(self._blobs):
            raise ArtefactError(f"{self.path}: there is no blob {number}")
        return self._blobs[number]

    def _manifest(self, size: int, environment: Mapping[str, str]) -> Mapping[str, Any]:
        header = self.memory[:HEADER_BYTES].tobytes()
        magic, version, length, stated, digest = _START.unpack_from(header)
        if magic != MAGIC or version != FORMAT:
            raise ArtefactError(f"{self.path}: not an artefact of format {FORMAT}")
        try:
            key = read_key(environment)
        except FileNotFoundError as error:
            raise ArtefactError(f"{self.path}: no key to check its seal with: {error}") from error
        if not hmac.compare_digest(seal(header[: _START.size], key), header[_START.size :]):
            raise ArtefactError(
                f"{self.path}: the header is damaged, or was sealed by another key"
            )
        if stated != size or length > MOST_MANIFEST_BYTES or HEADER_BYTES + length > size:
            raise ArtefactError(f"{self.path}: {size} bytes, {stated} were written")
        text = self.memory[size - length :].tobytes()
        if _blake2b(text).digest() != digest:
            raise ArtefactError(f"{self.path}: the manifest is damaged")
        try:
            manifest = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArtefactError(f"{self.path}: the manifest is no JSON: {error}") from error
        if not isinstance(manifest, dict):
            raise ArtefactError(f"{self.path}: the manifest is not an object")
        return manifest

    def _places(self, entries: object, size: int) -> tuple[BlobPlace, ...]:
        if not isinstance(entries, list):
            raise ArtefactError(f"{self.path}: the manifest lists no blobs")
        places = []
        for entry in entries:
            if type(entry) is not list or list(map(type, entry)) != [int, int, str]:
                raise ArtefactError(f"{self.path}: {entry!r:.60} is no place of a blob")
            offset, length, _ = place = BlobPlace(*entry)
            if not (HEADER_BYTES <= offset <= size and 0 <= length <= size - offset):
                raise ArtefactError(f"{self.path}: a blob at {offset} lies outside of the file")
            if offset % ALIGNMENT:
                raise ArtefactError(f"{self.path}: a blob at {offset} is not aligned")
            places.append(place)
        return tuple(places)


def checksum(content: bytes | np.ndarray) -> str:
    """Return sixteen hexadecimal digits, fast enough to be computed each time a blob is read.

    ``content`` is contiguous and starts at a multiple of 8. Whole pages are reduced to the sums of
    their 64-bit words, modulo 2**64. BLAKE2, which alone reaches 1 GB/s, hashes the sums and the
    bytes after the last whole page; so 100 MB that are mapped take 10 ms. A page lost, zeroed,
    moved or cut off is detected, and every change within one word; random damage to several words
    of one page passes with probability 2**-64, and words that merely changed places within a page
    are not detected. It protects against damage, not against forgery.
    """
    data = np.frombuffer(content, np.uint8)
    whole = data.size // PAGE_BYTES * PAGE_BYTES
    digest = hashlib.blake2b(data.size.to_bytes(8, "little"), digest_size=8)
    pages = data[:whole].view(np.uint64).reshape(-1, PAGE_BYTES // 8)
    digest.update(np.add.reduce(pages, axis=1, dtype=np.uint64).data)
    digest.update(data[whole:].data)
    return digest.hexdigest()


def _blake2b(content: bytes | memoryview) -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES)


def header(manifest: bytes, file_bytes: int, key: bytes) -> bytes:
    """Return the sealed header of a file of ``file_bytes``."""
    start = _START.pack(MAGIC, FORMAT, len(manifest), file_bytes, _blake2b(manifest).digest())
    return start + seal(start, key)


class ContainerDraft:
    """An artefact that is written while its parts are made; no part stays in memory.

    ``Container`` reads the file once ``finish`` has been called.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Begin an artefact in ``file``, which is empty and seekable. Raises OSError."""
        self._file = file
        self._places: list[BlobPlace] = []
        file.write(bytes(HEADER_BYTES))

    @property
    def size(self) -> int:
        """The number of bytes written so far."""
        return self._file.tell()

    def add(self, content: np.ndarray, *, is_indexed: bool = False) -> int:
        """Write a new blob of contiguous bytes. Return its number.

        ``is_indexed``: whether the bytes are indexed or parsed by, so that ``Container.copied``
        reads them. Raises OSError.
        """
        alignment = PAGE_BYTES if content.size >= PAGE_BYTES else ALIGNMENT
        self._file.write(bytes(-self.size % alignment))
        offset, data = self.size, np.ascontiguousarray(content)
        self._file.write(data.data)
        if data.ctypes.data % 8:  # checksums are summed by words
            data = data.copy()
        digest = _blake2b(data.data).hexdigest() if is_indexed else checksum(data)
        self._places.append(BlobPlace(offset, data.size, digest))
        return len(self._places) - 1

    def finish(self, content: Any) -> None:
        """Write manifest and header, sealed with this process's key, which is made if there is
        none.

        Raises OSError.
        """
        manifest = {"blobs": self._places, "content": content}
        text = json.dumps(manifest, separators=(",", ":")).encode()
        self._file.write(text)
        size = self.size
        self._file.seek(0)
        self._file.write(header(text, size, make_key()))
