"""Published folders of random bytes, like those that ``brisk publish`` makes of a model, and their
copies."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from brisk.artefacts.content import digest_of_file, sketch_of_file
from brisk.copies.manifest import CHUNK_BYTES, ListedFile, Manifest, Range, write_manifest
from brisk.copies.remote import MANIFEST
from brisk.sourcing.arriving import ArrivingCopy
from brisk.sourcing.room import make_copy


class Published(NamedTuple):
    """A folder with ``manifest.json``, and the contents of its files."""

    folder: Path
    manifest: Manifest
    sha256: str
    contents: tuple[bytes, ...]

    @property
    def own(self) -> tuple[bytes, ...]:
        return tuple(self.contents[number] for number in self.manifest.own)


def listed(
    name: str, content: bytes, form: str = "", chunk_bytes: int = CHUNK_BYTES
) -> ListedFile:
    digests = (
        hashlib.sha256(content[offset : offset + chunk_bytes]).digest()
        for offset in range(0, len(content), chunk_bytes)
    )
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(content)
        digest = digest_of_file(file.fileno(), len(content))
        sketch = sketch_of_file(file.fileno(), len(content))
    return ListedFile(name, len(content), form, digest, sketch, b"".join(digests))


def form_of(size: int) -> bytes:
    """Return a prepared form of a part of ``size`` random bytes, as it is published: without a
    seal."""
    import io

    import numpy as np

    from brisk.artefacts.container import ContainerDraft

    file = io.BytesIO()
    draft = ContainerDraft(file)
    draft.add(np.frombuffer(random.Random(5).randbytes(size), np.uint8))
    draft.finish({"model": "m"})
    content = bytearray(file.getvalue())
    content[64:96] = bytes(32)
    return bytes(content)


def publish(
    folder: Path,
    size: int = 5_000_000,
    *,
    seed: int = 0,
    forms: dict[str, bytes] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    weights_bytes: int = 300_000,
    head_ranges: Sequence[tuple[int, int]] = (),
) -> Published:
    """Publish a model of ``size`` bytes and a further file of weights.

    ``forms``: prepared forms. ``head_ranges``: starts and sizes in the model; empty: two short
    ones.
    """
    source = random.Random(seed)
    model, weights = source.randbytes(size), source.randbytes(weights_bytes)
    head_ranges = head_ranges or [(0, min(1000, size)), (size // 2, min(500, size - size // 2))]
    gathered = b"".join(model[start : start + count] for start, count in head_ranges)
    contents = [model, weights, gathered]
    files = [
        listed("model.onnx", model, chunk_bytes=chunk_bytes),
        listed("data/weights.bin", weights, chunk_bytes=chunk_bytes),
        listed("gathered", gathered, chunk_bytes=chunk_bytes),
    ]
    for form, content in (forms or {}).items():
        contents.append(content)
        files.append(listed(f"forms/{form}", content, form, chunk_bytes))
    head = tuple(Range(0, start, count) for start, count in head_ranges)
    order = (Range(0, 0, size), Range(1, 0, weights_bytes))
    manifest = Manifest(
        files=tuple(files),
        model=0,
        gathered=2,
        chunk_bytes=chunk_bytes,
        head=head,
        order=order,
        cuts=(),
        segments=(),
    )
    text = write_manifest(manifest)
    for file, content in zip(files, contents, strict=True):
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / MANIFEST).write_bytes(text)
    return Published(folder, manifest, hashlib.sha256(text).hexdigest(), tuple(contents))


def new_copy(folder: Path, published: Published) -> ArrivingCopy:
    """Return a copy in ``folder``, made now and open, of which nothing is here."""
    make_copy(folder, write_manifest(published.manifest), published.manifest)
    return ArrivingCopy(folder)


def chunk_of(published: Published, copy: ArrivingCopy, index: int) -> bytes:
    part = copy.layout.range_of(index)
    return published.contents[part.file][part.offset : part.offset + part.size]


def fill(published: Published, copy: ArrivingCopy, numbers: Iterable[int]) -> None:
    """Write all chunks of the files of these numbers."""
    for number in numbers:
        for index in range(*copy.layout.file(number)):
            assert copy.put(index, [chunk_of(published, copy, index)])
