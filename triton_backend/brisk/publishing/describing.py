"""The description of a published model: its files, what a start reads first, the order in which it
reads the rest, and its prepared form for machines like this one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from onnx import TensorProto

from brisk.artefacts import content
from brisk.artefacts.container import HEADER_BYTES
from brisk.artefacts.seals import DIGEST_BYTES as SEAL_BYTES
from brisk.copies.manifest import (
    CHUNK_BYTES,
    HEAD_NAME,
    MOST_FILES,
    ListedFile,
    ListedSegment,
    Manifest,
    Range,
)
from brisk.copies.remote import MANIFEST
from brisk.errors import InvalidModelError
from brisk.paths import open_file, open_inside
from brisk.publishing.measuring import measured_profile
from brisk.segments.model.extraction import normalise
from brisk.segments.model.graph_names import constants_of
from brisk.segments.model.late_cut import late_cut
from brisk.segments.model.model_file import ModelFile, read_model_file
from brisk.segments.model.row_tables import row_tables
from brisk.segments.model.sources import BareModel
from brisk.segments.prepared.form import PreparedModel, find_prepared
from brisk.segments.source import FileBytes, Source

FORMS_FOLDER = "forms"

_OTHER_FILES = 2
"""The files of a manifest besides the model's own: the head, and a prepared form."""

_WEIGHTS = frozenset(
    number
    for name, number in TensorProto.DataType.items()
    if name.startswith(("FLOAT", "BFLOAT", "DOUBLE", "INT8", "UINT8", "INT4", "UINT4"))
)
"""The types of values that are only computed with; all others may decide shapes when a model is
read."""


@dataclass(frozen=True, slots=True)
class Published:
    """A model to be published."""

    manifest: Manifest
    contents: Mapping[str, Path | bytes]
    """The bytes of each file, in memory or in a file of this machine, by its name next to the
    manifest."""


def describe(model: Path, threads: int, *, with_form: bool = True) -> Published:
    """Describe the model.

    ``threads``: for the runs that measure how long each segment takes. ``with_form``: whether the
    prepared form is published, if there is one for this machine. Raises InvalidModelError if the
    model cannot be read or changes meanwhile, and OSError.
    """
    model_file = read_model_file(model)
    normalise(model_file.proto)  # files before version 4 list weights as inputs
    names = [model.name, *(name for name in model_file.files if name != model.name)]
    for taken in {HEAD_NAME, MANIFEST}.intersection(names):
        raise InvalidModelError(f"{model}: its data lies in '{taken}'; rename that")
    if len(names) > MOST_FILES - _OTHER_FILES:
        raise InvalidModelError(
            f"{model}: it consists of {len(names)} files; expected {MOST_FILES - _OTHER_FILES} at "
            "most: onnx.save_model puts the data of all tensors into one"
        )
    cuts = cuts_of(model)
    source = BareModel(model, threads, cuts)
    paths = {name: model.parent / name for name in names}
    numbers = {path: number for number, path in enumerate(paths.values())}
    weights = list(_in_order(model_file, source))
    sizes = [path.stat().st_size for path in paths.values()]
    order = [Range(numbers[path], offset, size) for path, offset, size in weights]
    head = list(_rest(sizes, order))
    gathered = b"".join(_bytes_of(paths[names[part.file]], part) for part in head)
    files = []
    for name, size in zip(names, sizes, strict=True):
        with _opened(model, name) as file:  # not what is noted of it: hosts compare the bytes
            digest = content.digest_of_file(file.fileno(), size)
            sketch = content.sketch_of_file(file.fileno(), size)
        files.append(ListedFile(name, size, "", digest, sketch, _chunks_of(paths[name])))
    files.append(ListedFile(HEAD_NAME, len(gathered), "", "", "", _digests([gathered])))
    contents: dict[str, Path | bytes] = {**paths, HEAD_NAME: gathered}
    form = find_prepared(model, cuts) if with_form else None
    if (
        form is not None
        and not (prepared := PreparedModel(form, model, threads, cuts)).plan.defaults
    ):
        data = unsealed(form)
        name = f"{FORMS_FOLDER}/{form.name}"
        files.append(ListedFile(name, len(data), form.name, "", "", _digests([data])))
        contents[name] = data
        source_of_runs: Source = prepared
    else:
        source_of_runs = source
    segments = _measured(source_of_runs)
    _check_unchanged(model, model_file)
    manifest = Manifest(
        files=tuple(files),
        model=0,
        gathered=len(names),
        chunk_bytes=CHUNK_BYTES,
        head=tuple(head),
        order=tuple(order),
        cuts=cuts,
        segments=segments,
    )
    return Published(manifest, contents)


def _check_unchanged(model: Path, read: ModelFile) -> None:
    """Raise InvalidModelError if a file of the model is no longer what was read: the description
    would be of two states of it."""
    present = content.stamps(model, read.stamps)
    if not content.is_same_content(model, read.stamps, present):
        changed = [
            name or model.name for name, each in present.items() if each != read.stamps[name]
        ]
        raise InvalidModelError(
            f"{model}: {', '.join(changed)} changed while it was described; publish it again once "
            "nobody writes to it"
        )


def cuts_of(model: Path) -> tuple[str, ...]:
    """Return the values after which the model is cut when it arrives. Raises InvalidModelError."""
    model_file = read_model_file(model)
    normalise(model_file.proto)
    cut = late_cut(model_file)
    return (cut,) if cut else ()


def unsealed(form: Path) -> bytes:
    """Return a prepared form without this machine's seal: a host that fetches it compares it with
    the manifest and seals it anew."""
    data = bytearray(form.read_bytes())
    data[HEADER_BYTES - SEAL_BYTES : HEADER_BYTES] = bytes(SEAL_BYTES)
    return bytes(data)


def _in_order(model_file: ModelFile, source: BareModel) -> Iterator[FileBytes]:
    """Yield weights in the order of the segments that compute with them, each byte once; tables of
    which all segments read a few rows come last."""
    defaults = {info.name for info in model_file.proto.graph.input} & constants_of(
        model_file.proto.graph
    )
    streamed = {
        name
        for name, weight in model_file.weights.items()
        if weight.kind in _WEIGHTS and name not in defaults
    }
    yielded: set[FileBytes] = set()
    inputs = {variable.name for variable in source.plan.inputs}
    names: list[list[str]] = []
    tables: set[str] = set()
    for segment in source.segments:
        graph = segment.proto.graph
        of_rows = {table.name for table in row_tables(graph, inputs)}
        tables |= of_rows
        whole = streamed - of_rows
        names.append([each.name for each in graph.initializer if each.name in whole])
    every = (*names, sorted(streamed - tables), sorted(streamed & tables))
    for part in (part for each in every for part in model_file.bytes_of(each)):
        if part not in yielded and not any(_overlap(part, other) for other in yielded):
            yielded.add(part)
            yield part


def _overlap(one: FileBytes, other: FileBytes) -> bool:
    is_apart = one.offset + one.size <= other.offset or other.offset + other.size <= one.offset
    return one.path == other.path and not is_apart


def _rest(sizes: Sequence[int], parts: Sequence[Range]) -> Iterator[Range]:
    """Yield the bytes of files of these sizes that are in none of ``parts``, which do not
    overlap."""
    for number, size in enumerate(sizes):
        position = 0
        for part in sorted(part for part in parts if part.file == number):
            if part.offset > position:
                yield Range(number, position, part.offset - position)
            position = part.offset + part.size
        if size > position:
            yield Range(number, position, size - position)


def _measured(source: Source) -> tuple[ListedSegment, ...]:
    """Return the measured segments; none if the model takes inputs that cannot be made up."""
    try:
        profile = measured_profile(source)
    except InvalidModelError:
        return ()
    return tuple(ListedSegment(each.run_s, each.weight_bytes) for each in profile.segments)


def _opened(model: Path, name: str) -> BinaryIO:
    return open_file(model) if name == model.name else open_inside(model.parent, name, "data")


def _bytes_of(path: Path, part: Range) -> bytes:
    with open(path, "rb") as file:
        file.seek(part.offset)
        return file.read(part.size)


def _chunks_of(path: Path) -> bytes:
    with open(path, "rb") as file:
        return _digests(iter(lambda: file.read(CHUNK_BYTES), b""))


def _digests(parts: Iterable[bytes]) -> bytes:
    """Return the SHA-256 of each chunk of ``parts``, joined; the end of a part ends a chunk."""
    return b"".join(
        hashlib.sha256(part[start : start + CHUNK_BYTES]).digest()
        for part in parts
        for start in range(0, len(part), CHUNK_BYTES)
    )
