"""A prepared form with one value of its manifest changed, for every value, sealed anew.

As a program, with the paths of the model, its prepared form and the file to write: starts from
each such file and asks it, sealed without the key, as somebody else could, and with it, as if our
own writer had a fault. A line for each; a crash ends it, which its caller sees.
"""

from __future__ import annotations

import copy
import json
import resource
import sys
from pathlib import Path

import numpy as np

from brisk.artefacts.container import HEADER_BYTES, Container, header, make_key
from brisk.errors import BriskError
from brisk.segments.frame import run_serially
from brisk.segments.model import cutting
from brisk.segments.prepared.form import PreparedModel
from brisk.segments.starting import start_segments
from support.changes import leaves, others_of, put

MEMORY_BYTES = 8 << 30
X = np.random.default_rng(3).standard_normal((5, 512)).astype(np.float32)


def manifest_of(path: Path) -> tuple[bytes, dict]:
    """Return the bytes between header and manifest, and the manifest."""
    data, container = path.read_bytes(), Container(path)
    ends = (place.offset + place.size for place in map(container.place, range(len(container))))
    end = max(ends)
    return data[HEADER_BYTES:end], json.loads(data[end:])


def answer(path: Path, model: Path) -> list[np.ndarray]:
    """Return the answers of the sessions that the model starts with, then those of the warm
    ones."""
    started = start_segments(PreparedModel(path, model, 1))
    answers = list(run_serially(started.program, {"x": X}).values())
    started.load_warm(lambda: True)
    return [*answers, *run_serially(started.program, {"x": X}).values()]


def alike(answers: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    """Whether the answers are the same but for the last bits, in which packed weights differ."""
    return all(
        one.shape == other.shape and np.allclose(one, other, rtol=1e-4, atol=1e-5)
        for one, other in zip(answers, expected, strict=True)
    )


def main() -> None:
    model, prepared, changed = map(Path, sys.argv[1:])
    cutting.SMALL_MODEL_NODES = cutting.SMALL_MODEL_BYTES = cutting.CALL_NS = 0
    cutting.LONGEST_SEGMENT_NS = 15_000
    blobs, manifest = manifest_of(prepared)
    expected = answer(prepared, model)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    whole = prepared.stat().st_size
    for way, value in leaves(manifest):
        for other in others_of(value, whole):
            print(way, other, end=" ", flush=True)
            changed_manifest = copy.deepcopy(manifest)
            put(changed_manifest, way, other)
            text = json.dumps(changed_manifest).encode()
            size = HEADER_BYTES + len(blobs) + len(text)
            for key in (b"", make_key()):
                changed.write_bytes(header(text, size, key) + blobs + text)
                changed.chmod(0o600)
                try:
                    outcome = "same" if alike(answer(changed, model), expected) else "other"
                except BriskError:
                    outcome = "refused"
                changed.unlink()
                print(":", outcome, end=" ", flush=True)
            print(flush=True)
    print("end", flush=True)


if __name__ == "__main__":
    main()
