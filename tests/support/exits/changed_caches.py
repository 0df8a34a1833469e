"""Learned caches with one field changed, for every field, the digest made anew: read and asked.

As a program, with the paths of a file of caches and of one to write: a line for each change; a
crash ends it, which its caller sees. Whoever may write to the model repository can make these.
"""

from __future__ import annotations

import copy
import hashlib
import json
import resource
import sys
from pathlib import Path

import numpy as np

from brisk.exits.cascade_file import read_cascade
from brisk.exits.files.container import _PREFIX, ALIGNMENT, DamagedFileError
from brisk.runtime.sessions.served_caches import ServedCaches
from support.changes import leaves, others_of, put
from support.exits.cascades import served

MEMORY_BYTES = 8 << 30


def main() -> None:
    source, changed = Path(sys.argv[1]), Path(sys.argv[2])
    model = served()
    data = source.read_bytes()
    magic, version, length = _PREFIX.unpack_from(data)
    start = _PREFIX.size + length
    content = json.loads(data[_PREFIX.size : start])
    blobs = data[start + -start % ALIGNMENT : -hashlib.sha256().digest_size]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    changes = [
        (way, other) for way, value in leaves(content) for other in others_of(value, len(data))
    ]
    for way, other in [((), None), *changes]:
        print(way, other, end=" ", flush=True)
        manifest = copy.deepcopy(content)
        if way:
            put(manifest, way, other)
        text = json.dumps(manifest).encode()
        body = _PREFIX.pack(magic, version, len(text)) + text
        body += bytes(-len(body) % ALIGNMENT) + blobs
        changed.write_bytes(body + hashlib.sha256(body).digest())
        try:
            caches = ServedCaches.of(read_cascade(changed, None), model.cut)
            outcome = "read"
            for each in caches.cascade.exits:
                for rows in (1, 64):
                    found = each.evaluate(np.ones((rows, *each.shape), np.float32))
                    assert len(found.scores) == len(found.near) == rows
                    assert found.logits.shape == (rows, caches.cascade.scores.classes)
        except DamagedFileError:
            outcome = "refused"
        print(":", outcome, flush=True)
    print("end", flush=True)


if __name__ == "__main__":
    main()
