"""An artefact with one field changed, for every field, its digests made anew: what comes of it.

As a program, with the paths ``model artefact changed`` and which of how many parts of all, it
starts and asks the model from each such file that is sealed with the key, as if our own writer
had a fault, and prints a line for each; a crash ends it, which its caller sees.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import json
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brisk.artefacts.checksum import checksum
from brisk.artefacts.container import FORMAT, HEADER_BYTES, MAGIC
from brisk.artefacts.seal import seal
from brisk.compiled.table import StepEntry

START = struct.Struct("<8sIIQQ32s")
ROOM = 4096
"""Bytes by which a changed manifest may be longer."""

MEMORY_BYTES = 6 << 30
Seal = Callable[[bytes], bytes]


def unkeyed(start: bytes) -> bytes:
    """What somebody without the key can make."""
    return hashlib.blake2b(start, digest_size=32).digest()


def near(value: int, size: int) -> list[int]:
    """0, and what lies 1, ``size``, 2^31 and 2^62 to either side; without ``value`` itself."""
    far = [sign * step for step in (1, size, 1 << 31, 1 << 62) for sign in (1, -1)]
    return [
        other for other in dict.fromkeys([0, *(value + each for each in far)]) if other != value
    ]


@dataclass
class Whole:
    """The parts of an artefact's file."""

    manifest: dict[str, Any]
    blobs: list[bytes]
    offsets: tuple[int, ...] = ()
    """Where the blobs are, whatever the manifest says; of a whole that is ``placed``."""

    @classmethod
    def read(cls, path: Path) -> Whole:
        data = path.read_bytes()
        _, _, _, length, _, _ = START.unpack_from(data)
        manifest = json.loads(data[HEADER_BYTES : HEADER_BYTES + length])
        blobs = [data[offset : offset + size] for offset, size, _ in manifest["blobs"]]
        return cls(manifest, blobs)

    @property
    def room(self) -> int:
        return -(-len(json.dumps(self.manifest)) // ROOM) * ROOM + ROOM

    def placed(self) -> Whole:
        """With all blobs behind a manifest that has room to grow."""
        made, offset = copy.deepcopy(self), HEADER_BYTES + self.room
        for place, blob in zip(made.manifest["blobs"], self.blobs, strict=True):
            place[0] = offset = -(-offset // ROOM) * ROOM
            offset += len(blob)
        made.offsets = tuple(place[0] for place in made.manifest["blobs"])
        return made

    def file(self, make_seal: Seal, room: int, **header: int) -> bytes:
        """``header``: fields that are to be others than they should."""
        text = json.dumps(self.manifest).encode().ljust(room)
        body = bytearray(text)
        for offset, blob in zip(self.offsets, self.blobs, strict=True):
            body += bytes(max(offset - HEADER_BYTES - len(body), 0)) + blob
        fields = {"format": FORMAT, "reserved": 0, "manifest": len(text), "file": 0} | header
        if "file" not in header:
            fields["file"] = HEADER_BYTES + len(body)
        digest = hashlib.blake2b(text, digest_size=32).digest()
        start = START.pack(
            MAGIC, *(_wrapped(fields[name], bits) for name, bits in _HEADER), digest
        )
        return start + make_seal(start) + bytes(body)

    def digest_anew(self, number: int) -> None:
        before = self.manifest["blobs"][number][2]
        blob = self.blobs[number]
        anew = hashlib.blake2b(blob, digest_size=32).hexdigest()
        if len(before) == 16:
            anew = checksum(np.frombuffer(blob, np.uint8).copy())
        self.manifest["blobs"][number][2] = anew


_HEADER = (("format", 32), ("reserved", 32), ("manifest", 64), ("file", 64))


def _wrapped(value: int, bits: int) -> int:
    return value % (1 << bits)


def changed_files(path: Path, make_seal: Seal) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Each with its name. Of one change each."""
    whole = Whole.read(path).placed()
    room, size = whole.room, path.stat().st_size
    yield "nothing", lambda: whole.file(make_seal, room)
    fields = {"format": FORMAT, "reserved": 0, "manifest": room}
    fields["file"] = len(whole.file(make_seal, room))
    for name, value in fields.items():
        for other in near(value, size):
            yield (
                f"header {name} {other}",
                lambda name=name, other=other: whole.file(make_seal, room, **{name: other}),
            )
    for way, value in leaves(whole.manifest):
        for other in others_of(value, size):

            def changed(way: tuple[Any, ...] = way, other: Any = other) -> bytes:
                made = Whole(copy.deepcopy(whole.manifest), whole.blobs, whole.offsets)
                put(made.manifest, way, other)
                return made.file(make_seal, room)

            yield f"manifest {way} {other}", changed
    indexed = [n for n, place in enumerate(whole.manifest["blobs"]) if len(place[2]) > 16]
    tables = {record["blobs"][0] for record in whole.manifest["content"]["runs"]}
    for number in indexed:
        edits = table_edits if number in tables else text_edits
        for name, edited in edits(whole.blobs[number], size):

            def altered(number: int = number, edited: Callable[[], bytes] = edited) -> bytes:
                made = Whole(copy.deepcopy(whole.manifest), list(whole.blobs), whole.offsets)
                made.blobs[number] = edited()
                made.manifest["blobs"][number][1] = len(made.blobs[number])
                made.digest_anew(number)
                return made.file(make_seal, room)

            yield f"blob {number} {name}", altered


def leaves(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield way, value
    for key, inner in items:
        yield from leaves(inner, (*way, key))


def others_of(value: Any, size: int) -> list[Any]:
    if type(value) is int:
        return near(value, size)
    return [0] if value is None else [None]


def put(root: Any, way: tuple[Any, ...], value: Any) -> None:
    for key in way[:-1]:
        root = root[key]
    root[way[-1]] = value


def table_edits(blob: bytes, size: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Every integer of every step, and a table that is cut off."""
    count = len(blob) // ctypes.sizeof(StepEntry)
    for step in range(count):
        for name, offset, width in places(StepEntry):
            at = step * ctypes.sizeof(StepEntry) + offset
            value = int.from_bytes(blob[at : at + width], "little", signed=True)
            wrapped = {_wrapped(other, 8 * width) for other in near(value, size)}
            for other in sorted(wrapped - {_wrapped(value, 8 * width)}):
                yield (
                    f"step {step} {name} {other}",
                    lambda at=at, other=other, width=width: (
                        blob[:at] + other.to_bytes(width, "little") + blob[at + width :]
                    ),
                )
    for length in (0, 1, len(blob) - 1, len(blob) - ctypes.sizeof(StepEntry)):
        yield f"cut to {length}", lambda length=length: blob[:length]


def places(kind: Any, prefix: str = "", base: int = 0) -> Iterator[tuple[str, int, int]]:
    """Name, offset and bytes of each number of a record, pointers included."""
    for name, field in kind._fields_:
        offset = base + getattr(kind, name).offset
        if issubclass(field, ctypes.Structure):
            yield from places(field, f"{prefix}{name}.", offset)
        elif issubclass(field, ctypes.Array):
            width = ctypes.sizeof(field._type_)
            for item in range(field._length_):
                yield f"{prefix}{name}[{item}]", offset + item * width, width
        else:
            yield f"{prefix}{name}", offset, ctypes.sizeof(field)


def text_edits(blob: bytes, size: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Every value of a JSON text; every word of anything else."""
    try:
        content = json.loads(blob)
    except ValueError:
        for at in range(0, len(blob) - 7, 8):
            value = int.from_bytes(blob[at : at + 8], "little")
            for other in {_wrapped(other, 64) for other in near(value, size)} - {value}:
                word = other.to_bytes(8, "little")
                yield f"word {at} {other}", lambda at=at, w=word: blob[:at] + w + blob[at + 8 :]
        return
    for way, value in leaves(content):
        for other in others_of(value, size):

            def edited(way: tuple[Any, ...] = way, other: Any = other) -> bytes:
                made = copy.deepcopy(content)
                put(made, way, other)
                return json.dumps(made).encode()

            yield f"{way} {other}", edited


def main() -> None:
    import torch

    from brisk.execution.serial import run_serially
    from brisk.execution.starting import start_program

    model, artefact, changed = (Path(each) for each in sys.argv[1:4])
    part, parts = map(int, sys.argv[4:])
    key = (artefact.parent.parent / "key").read_bytes()
    device = torch.device("cpu")
    torch.set_num_threads(1)
    plain = start_program(model, device, 2, None, lambda error: None)
    inputs = {
        one.name: torch.from_numpy(
            np.random.default_rng(3).standard_normal((1, *one.type.shape[1:]), np.float32)  # type: ignore[index]
        )
        for one in plain.loaded.program.inputs
    }
    wanted = run_serially(plain.loaded, inputs)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    files = changed_files(artefact, lambda start: seal(start, key))
    for place, (name, content) in enumerate(files):
        if place and place % parts != part:
            continue
        print(name, end=" ", flush=True)
        draft = changed.with_suffix(".draft")
        draft.write_bytes(content())
        draft.chmod(0o600)
        draft.replace(changed)
        rejected: list[Exception] = []
        try:
            found = run_serially(
                start_program(model, device, 2, changed, rejected.append).loaded, inputs
            )
            same = found.keys() == wanted.keys() and all(
                torch.allclose(found[each], wanted[each], 1e-3, 1e-4, equal_nan=True)  # type: ignore[arg-type]
                for each in wanted
            )
            outcome = "other" if not same else "refused" if rejected else "equal"
        except Exception as error:  # noqa: BLE001  # an error is no crash
            outcome = f"error {type(error).__name__}: {error}"
        print(":", outcome.replace("\n", " ")[:120], flush=True)
    print("end", flush=True)


if __name__ == "__main__":
    main()
