"""The manifest of a published model: with the manifest's digest, a host can trust bytes from any
source (Flashpoint, chapter 5: sources are many, the model is one).

An entry names the manifest by its URL and SHA-256 (``model.remote``). The manifest lists the
model's files in chunks, each by its SHA-256, and the order in which a start needs them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from brisk.errors import InvalidModelError

FORMAT = 1
HEAD_NAME = "head.bin"
"""The name of the file ``gathered``, unless it was given another one."""

CHUNK_BYTES = 1 << 18
"""The size of a chunk, which is verified and passed on as a whole: each host of a chain is later
by the time of one."""

LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES = 1 << 16, 1 << 24
MOST_MANIFEST_BYTES = 64 << 20
MOST_FILES = 256
MOST_FILE_BYTES = 1 << 41
MOST_RANGES = 1 << 20
MOST_CUTS = 64
_MOST_NAME = 200
_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

DIGEST_BYTES = 32


class Range(NamedTuple):
    """Bytes of a file of the manifest; ``file``: the file's number."""

    file: int
    offset: int
    size: int


class ListedFile(NamedTuple):
    """A file of a manifest."""

    name: str
    """The path relative to the manifest, with ``/`` between folders."""
    size: int
    form: str
    """The name of the prepared form that it is, by model and machine (``prepared_name``); empty:
    it is a file of the model itself."""
    digest: str
    """The digest by which artefacts of the model are found (``artefacts.content``)."""
    sketch: str
    """The sketch by which artefacts of the model are found sooner."""
    chunks: bytes
    """The SHA-256 of each chunk, concatenated."""


class ListedSegment(NamedTuple):
    """A segment of the model as the publisher's machine cut it."""

    run_s: float
    """The predicted time of a run of the segment."""
    weight_bytes: int


class Manifest(NamedTuple):
    """The files of a published model, and the order in which a start needs their bytes."""

    files: tuple[ListedFile, ...]
    model: int
    """The number of the file that is the ONNX model."""
    gathered: int
    """The number of the file with the bytes of ``head``, one range behind the other, which is
    fetched first; its bytes are written to where they belong."""
    chunk_bytes: int
    head: tuple[Range, ...]
    """All bytes of the model's files that are no weights: they are read before any weight, and lie
    scattered between them."""
    order: tuple[Range, ...]
    """The ranges of the weights, in the order in which the model computes with them."""
    cuts: tuple[str, ...]
    segments: tuple[ListedSegment, ...]
    """The segments; empty if they were not measured."""

    @property
    def own(self) -> tuple[int, ...]:
        """The numbers of the model's own files."""
        return tuple(
            number
            for number, file in enumerate(self.files)
            if not file.form and number != self.gathered
        )

    @property
    def gathered_range(self) -> Range:
        """The range of the whole file that holds the head."""
        return Range(self.gathered, 0, self.files[self.gathered].size)

    def form_named(self, name: str) -> int | None:
        """Return the number of the prepared form of that name; None: it was not published."""
        numbers = (number for number, file in enumerate(self.files) if file.form == name)
        return next(numbers, None) if name else None

    def chunk_count(self, number: int) -> int:
        return -(-self.files[number].size // self.chunk_bytes)

    def chunk_digest(self, number: int, chunk: int) -> bytes:
        return self.files[number].chunks[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]

    def chunk_range(self, number: int, chunk: int) -> Range:
        offset = chunk * self.chunk_bytes
        return Range(number, offset, min(self.chunk_bytes, self.files[number].size - offset))

    def chunks_of(self, part: Range) -> range:
        """Return the numbers, within their file, of the chunks that contain the bytes."""
        if not part.size:
            return range(0)
        return range(
            part.offset // self.chunk_bytes,
            (part.offset + part.size - 1) // self.chunk_bytes + 1,
        )


def write_manifest(manifest: Manifest) -> bytes:
    """Return the manifest's bytes, the same for equal manifests. Raises InvalidModelError if it
    contradicts itself."""
    _check(manifest)
    record = {
        **manifest._asdict(),
        "brisk_manifest": FORMAT,
        "files": [{**file._asdict(), "chunks": file.chunks.hex()} for file in manifest.files],
    }
    return json.dumps(record, separators=(",", ":"), sort_keys=True).encode()


@lru_cache(maxsize=4)  # a start reads the same one several times
def read_manifest(text: bytes, sha256: str) -> Manifest:
    """Return the manifest in ``text``. ``sha256``: its digest in hexadecimal digits, from a
    trusted source.

    Raises InvalidModelError if the bytes have another digest, or are no manifest.
    """
    from hashlib import sha256 as digest_of  # 4 ms, saved in a stub that reads none

    actual = digest_of(text).hexdigest()
    if actual != sha256:
        raise InvalidModelError(f"the manifest has SHA-256 {actual}, expected {sha256}")
    try:
        return _read(json.loads(text))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise InvalidModelError(f"the manifest is none: {error!r:.200}") from error


def _read(record: Mapping[str, Any]) -> Manifest:
    if type(record["brisk_manifest"]) is not int or record["brisk_manifest"] != FORMAT:
        _refuse(f"it is of format {record['brisk_manifest']!r:.20}, expected {FORMAT}")
    if len(record["files"]) > MOST_FILES:
        _refuse(f"it names {len(record['files'])} files, expected {MOST_FILES} at most")
    files = tuple(
        ListedFile(
            _text(file["name"]),
            _whole(file["size"]),
            _text(file["form"]),
            _text(file["digest"]),
            _text(file["sketch"]),
            bytes.fromhex(file["chunks"]),
        )
        for file in record["files"]
    )
    segments = tuple(
        ListedSegment(_seconds(run_s), _whole(size)) for run_s, size in record["segments"]
    )
    manifest = Manifest(
        files,
        _whole(record["model"]),
        _whole(record["gathered"]),
        _whole(record["chunk_bytes"]),
        tuple(_ranges(record["head"])),
        tuple(_ranges(record["order"])),
        tuple(map(_text, record["cuts"][:MOST_CUTS])),
        segments,
    )
    _check(manifest)
    return manifest


def _ranges(records: Sequence[Any]) -> Iterator[Range]:
    if len(records) > MOST_RANGES:
        _refuse(f"it has {len(records)} ranges, expected {MOST_RANGES} at most")
    for file, offset, size in records:
        yield Range(_whole(file), _whole(offset), _whole(size))


def _check(manifest: Manifest) -> None:
    chunk_bytes = manifest.chunk_bytes
    if not LEAST_CHUNK_BYTES <= chunk_bytes <= MOST_CHUNK_BYTES or chunk_bytes & chunk_bytes - 1:
        _refuse(f"its chunks are of {chunk_bytes} bytes")
    own = frozenset(manifest.own)
    names: set[str] = set()
    forms: set[str] = set()
    for number, file in enumerate(manifest.files):
        _check_name(file.name)
        if file.name in names:
            _refuse(f"it names '{file.name}' twice")
        names.add(file.name)
        if file.size > MOST_FILE_BYTES:
            _refuse(f"'{file.name}' is of {file.size} bytes")
        if len(file.chunks) != DIGEST_BYTES * manifest.chunk_count(number):
            _refuse(f"'{file.name}' of {file.size} bytes has {len(file.chunks)} bytes of digests")
        for digest, length in ((file.digest, 32), (file.sketch, 16)):
            if number in own and not _is_digest(digest, length):
                _refuse(f"'{file.name}' has no digest of its content")
        if file.form and (not _FORM.fullmatch(file.form) or file.form in forms):
            _refuse(f"'{file.name}' is a form of no name, or of another one's")
        forms.add(file.form)
    for name in names:
        above = name.split("/")[:-1]
        if any("/".join(above[:count]) in names for count in range(1, len(above) + 1)):
            _refuse(f"'{name}' lies in what is a file")
    if manifest.model not in own:
        _refuse("it names no model")
    if not manifest.gathered < len(manifest.files) or manifest.files[manifest.gathered].form:
        _refuse("it names no file with the model's head")
    head_bytes = sum(part.size for part in manifest.head)
    if head_bytes != manifest.files[manifest.gathered].size:
        _refuse(f"the head has {head_bytes} bytes, and its file another number of them")
    for part in (*manifest.head, *manifest.order):
        if part.file not in own:
            _refuse(f"it has bytes of a file {part.file}")
        if part.offset + part.size > manifest.files[part.file].size:
            _refuse(f"it has bytes behind the end of '{manifest.files[part.file].name}'")
    for segment in manifest.segments:
        if not 0 <= segment.run_s < 3600:
            _refuse(f"a segment takes {segment.run_s} s")


def _check_name(name: str) -> None:
    parts = name.split("/")
    is_plain = len(name) <= _MOST_NAME and name.isprintable() and "\\" not in name
    if not is_plain or any(part in ("", ".", "..") or part[0] == "." for part in parts):
        _refuse(f"'{name!r:.80}' is no name of a file below it")


def _is_digest(text: str, length: int) -> bool:
    return len(text) == length and not set(text) - set("0123456789abcdef")


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r:.40} is no whole number")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r:.40} is no number of seconds")
    return float(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _refuse(problem: str) -> NoReturn:
    raise InvalidModelError(f"the manifest cannot be used: {problem}")
