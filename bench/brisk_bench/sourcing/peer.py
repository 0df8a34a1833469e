"""What runs in the peer of ``brisk bench sourcing``: its courier has a copy, which others fetch.

    python -m brisk_bench.sourcing.peer

It is told what to fetch, says when all is there, and is then told where its bytes are to be read
from: ``memory`` or ``disk``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from brisk.copies.courier import Courier
from brisk.copies.local import LocalCopy
from brisk.copies.manifest import Range
from brisk.copies.remote import Remote
from brisk_bench.cold.measure import disk_seconds, drop_pages, files_of, read_pages
from brisk_bench.sourcing.places import DISK, cached_bytes


def main() -> None:
    with Courier() as courier:
        _say()
        told = json.loads(sys.stdin.readline())
        copy = LocalCopy(courier.open(Remote(told["url"], told["sha256"])))
        parts = list(copy.all_of_it)
        for number, file in enumerate(copy.manifest.files):
            if file.form and courier.take(told["sha256"], file.form) is not None:
                parts.append(Range(number, 0, file.size))
        for _ in courier.wait(told["sha256"], parts):
            continue
        files = files_of(copy.folder)
        size = sum(file.stat().st_size for file in files)
        _say(bytes=size)
        for line in sys.stdin:
            place = json.loads(line)["from"]
            bytes_per_s = size / disk_seconds(files) if place == DISK else 0.0
            (drop_pages if place == DISK else read_pages)(files)
            _say(cached=cached_bytes(files), bytes_per_s=bytes_per_s)


def _say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
