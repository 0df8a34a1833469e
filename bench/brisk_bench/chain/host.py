"""What runs in a receiving host of ``brisk bench chain``: a client of that host's courier.

    python -m brisk_bench.chain.host

It starts the courier, says that it is there, and is told what to fetch and when; then it says when
all was here, and what the courier's processes took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from brisk.copies.connection import lock_path
from brisk.copies.courier import Courier
from brisk.copies.local import LocalCopy
from brisk.copies.manifest import Range
from brisk.copies.remote import Remote

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    with Courier() as courier:
        process = _courier()
        _say(process=process)
        told = json.loads(sys.stdin.readline())
        while time.monotonic_ns() < told["begin_ns"]:
            time.sleep(0.0005)
        before_s = _processor_s(process)
        folder = courier.open(Remote(told["url"], told["sha256"]))
        copy = LocalCopy(folder)
        files = copy.manifest.files
        own = [Range(number, 0, files[number].size) for number in copy.manifest.own]
        for _ in courier.wait(told["sha256"], own):
            continue
        finished_ns = time.monotonic_ns()
        (status,) = courier.status()
        _say(
            finished_ns=finished_ns,
            processor_s=_processor_s(process) - before_s,
            path=str(copy.model),
            upstream=status["upstream"],
            sources={each["name"]: each["bytes_total"] for each in status["sources"]},
        )
        sys.stdin.readline()  # others may still be fetching from here


def _courier() -> int:
    """The process that holds the courier's lock."""
    inode = os.stat(lock_path()).st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
            return int(fields[4])
    raise SystemExit("no process holds the courier's lock")


def _processor_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
