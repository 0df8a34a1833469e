"""A file of named tensors with a JSON header: nothing in it is code, everything is checked.

Layout, little-endian: 8 bytes of magic, uint32 version, uint64 length of the header, the header
(UTF-8 JSON), zeros up to a multiple of 64, the tensors one after the other, each at a multiple of
64, and the SHA-256 of all bytes before it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brisk.errors import InvalidModelError, may_pass
from brisk.paths import open_file

MAGIC = b"BRISKCAC"
VERSION = 4
"""The version in which exits stand at values of the model and are ONNX models themselves."""
ALIGNMENT = 64
_PREFIX = struct.Struct("<8sIQ")
_DIGEST_BYTES = 32
NUMBERS = frozenset(
    {
        *("float16", "float32", "float64", "bool"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    }
)
"""The types of numbers that models may read and give, by their names in numpy."""
LARGEST_HEADER_BYTES = 16 << 20
LARGEST_FILE_BYTES = 4 << 30


class DamagedFileError(ValueError):
    """The file is not of this format or version, or not what was written."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorFile:
    """The content of a file."""

    header: Mapping[str, Any]
    """JSON values."""
    tensors: Mapping[str, np.ndarray]
    """Arrays by name, views of the file's bytes."""


def write_container(
    path: Path,
    header: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    mode: int = 0o644,
    outdated: Path | None = None,
) -> None:
    """Write a file and publish it: a reader sees the old file or the whole new one.

    ``outdated``: a file that is deleted before that, once the new one is written.
    """
    table: dict[str, Any] = {}
    blobs, offset = [], 0
    for name, array in tensors.items():
        data = np.ascontiguousarray(array)
        padding = -offset % ALIGNMENT
        blobs += [bytes(padding), data.tobytes()]
        offset += padding
        table[name] = {"dtype": data.dtype.name, "shape": list(data.shape), "offset": offset}
        offset += data.nbytes
    text = json.dumps({"header": header, "tensors": table}, allow_nan=False).encode()
    head = _PREFIX.pack(MAGIC, VERSION, len(text)) + text
    data_bytes = head + bytes(-len(head) % ALIGNMENT) + b"".join(blobs)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        descriptor = os.open(
            unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(data_bytes)
            file.write(hashlib.sha256(data_bytes).digest())
            file.flush()
            os.fsync(file.fileno())
        if outdated is not None:
            outdated.unlink(missing_ok=True)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_container(path: Path) -> TensorFile:
    """Return the content of a file. Raises DamagedFileError with the reason, and OSError."""
    try:
        with open_file(path, "the caches' file") as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST_FILE_BYTES:
                raise DamagedFileError(
                    f"it has {size} bytes, at most {LARGEST_FILE_BYTES} are read"
                )
            data = file.read()
    except InvalidModelError as error:
        raise DamagedFileError(str(error)) from error
    if len(data) < _PREFIX.size + _DIGEST_BYTES:
        raise DamagedFileError(f"it has {len(data)} bytes only")
    magic, version, length = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise DamagedFileError("it is no file of learned caches")
    if version < VERSION:
        raise DamagedFileError(
            f"it is of format {version}, trained for another engine; train again with "
            "`brisk caches train`"
        )
    if version != VERSION:
        raise DamagedFileError(f"it is of format {version}, expected {VERSION}")
    body = memoryview(data)[:-_DIGEST_BYTES]
    if hashlib.sha256(body).digest() != data[-_DIGEST_BYTES:]:
        raise DamagedFileError("its bytes are not those that were written")
    if length > min(LARGEST_HEADER_BYTES, len(body) - _PREFIX.size):
        raise DamagedFileError("its header is longer than the file")
    try:
        text = bytes(body[_PREFIX.size : _PREFIX.size + length])
        parsed = json.loads(text)
        start = _PREFIX.size + length
        blobs = body[start + -start % ALIGNMENT :]
        tensors = {name: _tensor(blobs, entry) for name, entry in parsed["tensors"].items()}
        return TensorFile(parsed["header"], tensors)
    except DamagedFileError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"its header is malformed: {error}") from error


def digest_at_end(path: Path) -> str:
    """Return the digest with which the file ends, hexadecimal: no other file has the same. The
    rest is not read. Raises OSError, and InvalidModelError if the file leads out of its folder."""
    with open_file(path, "the caches' file") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _DIGEST_BYTES))
        return file.read().hex()


def read_header(path: Path) -> Mapping[str, Any]:
    """Return the header of a file whose tensors are not read and whose bytes are not compared with
    their digest; empty if it has none. Raises OSError, and InvalidModelError if it cannot be read
    now."""
    try:
        header = _read_head(path)[0]["header"]
    except InvalidModelError as error:
        if may_pass(error):
            raise
        return {}
    except _NO_HEAD:
        return {}
    return header if isinstance(header, dict) else {}


_NO_HEAD = (struct.error, LookupError, TypeError, ValueError, ArithmeticError, RecursionError)
"""The errors that what is no file of caches may raise."""


def _read_head(path: Path) -> tuple[Any, int]:
    """Return the JSON with which a file begins, and the bytes of its tensors. Raises OSError,
    InvalidModelError, and ``_NO_HEAD``."""
    with open_file(path, "the caches' file") as file:
        magic, version, length = _PREFIX.unpack(file.read(_PREFIX.size))
        if (magic, version) != (MAGIC, VERSION) or length > LARGEST_HEADER_BYTES:
            raise DamagedFileError("it is no file of learned caches of this format")
        parsed = json.loads(file.read(length))
        start = _PREFIX.size + length
        rest = os.fstat(file.fileno()).st_size - start
        return parsed, rest - -start % ALIGNMENT - _DIGEST_BYTES


def _tensor(blobs: memoryview, entry: Mapping[str, Any]) -> np.ndarray:
    dtype, shape, offset = entry["dtype"], entry["shape"], entry["offset"]
    if dtype not in NUMBERS or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise DamagedFileError(f"a tensor of {dtype} {shape} is not expected")
    end = offset + _bytes_of(entry)
    if not 0 <= offset <= end <= len(blobs):
        raise DamagedFileError("a tensor lies outside of the file")
    return np.frombuffer(blobs[offset:end], dtype).reshape(shape)


def tapped_values(caches: Path) -> tuple[str, ...]:
    """Return the values behind which a model has to stop for ``caches``, before it is loaded.

    There are none if the file cannot be read, which is reported when the caches are opened. The
    names are only searched for in the model, so they need no further check, and a start does not
    wait for what follows the header: a model in int8 may be there.
    """
    try:
        parsed, tensors_bytes = _read_head(caches)
        ends = (each["offset"] + _bytes_of(each) for each in parsed["tensors"].values())
        if max(ends, default=0) != tensors_bytes:
            return ()
        header = parsed["header"]
        found: dict[str, None] = {}
        for index, entry in enumerate(header["exits"]):
            is_used = any(level["thresholds"][index] is not None for level in header["levels"])
            if is_used and entry["position"] != 0:
                found[str(entry["value"])] = None
                if entry["noticed_at"] is not None and not header["synchronous"]:
                    found[str(entry["noticed_at"])] = None
        return tuple(found)
    except (OSError, InvalidModelError, AttributeError, *_NO_HEAD):
        return ()


def _bytes_of(entry: Mapping[str, Any]) -> int:
    return int(math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize)
