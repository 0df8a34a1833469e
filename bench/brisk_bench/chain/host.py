"""The program in a receiving host of ``brisk bench chain``: a client of that host's courier.

    python -m brisk_bench.chain.host

It starts the courier, reports its process, and reads what to fetch and when to begin. Then it
reports when all bytes were here, and the processor time of the courier's processes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from brisk.copies.connection import lock_path
from brisk.copies.courier import Courier
from brisk.copies.local import LocalCopy
from brisk.copies.manifest import Range
from brisk.copies.remote import Remote
from brisk_bench.harness.processes import processor_s_of
from brisk_bench.harness.programs import tasks, tell


def main() -> None:
    with Courier() as courier:
        process = _courier()
        tell(process=process)
        heard = tasks()
        task = next(heard)
        while time.monotonic_ns() < task["begin_ns"]:
            time.sleep(0.0005)
        before_s = processor_s_of(process)
        folder = courier.open(Remote(task["url"], task["sha256"]))
        copy = LocalCopy(folder)
        files = copy.manifest.files
        own = [Range(number, 0, files[number].size) for number in copy.manifest.own]
        for _ in courier.wait(task["sha256"], own):
            continue
        finished_ns = time.monotonic_ns()
        tell(
            finished_ns=finished_ns,
            processor_s=processor_s_of(process) - before_s,
            path=str(copy.model),
        )
        next(heard, None)  # others may still be fetching from here


def _courier() -> int:
    """Return the id of the process that holds the courier's lock. Raises SystemExit without."""
    inode = os.stat(lock_path()).st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
            return int(fields[4])
    raise SystemExit("no process holds the courier's lock")


if __name__ == "__main__":
    main()
