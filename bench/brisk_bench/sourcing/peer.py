"""The program in the peer of ``brisk bench sourcing``: its courier has a copy, which others fetch.

    python -m brisk_bench.sourcing.peer

It reads what to fetch, reports when all is there, and then reads where others are to get its bytes
from: ``memory`` or ``disk``.
"""

from __future__ import annotations

from brisk.copies.courier import Courier
from brisk.copies.local import LocalCopy
from brisk.copies.manifest import Range
from brisk.copies.remote import Remote
from brisk_bench.cold.page_cache import (
    DISK,
    cached_bytes,
    disk_seconds,
    drop_pages,
    files_of,
    read_pages,
)
from brisk_bench.harness.programs import tasks, tell


def main() -> None:
    with Courier() as courier:
        tell()
        heard = tasks()
        remote = next(heard)
        copy = LocalCopy(courier.open(Remote(remote["url"], remote["sha256"])))
        parts = list(copy.all_of_it)
        for number, file in enumerate(copy.manifest.files):
            if file.form and courier.take(remote["sha256"], file.form) is not None:
                parts.append(Range(number, 0, file.size))
        for _ in courier.wait(remote["sha256"], parts):
            continue
        files = files_of(copy.folder)
        size = sum(file.stat().st_size for file in files)
        tell(bytes=size)
        for task in heard:
            place = task["from"]
            bytes_per_s = size / disk_seconds(files) if place == DISK else 0.0
            (drop_pages if place == DISK else read_pages)(files)
            tell(cached=cached_bytes(files), bytes_per_s=bytes_per_s)


if __name__ == "__main__":
    main()
