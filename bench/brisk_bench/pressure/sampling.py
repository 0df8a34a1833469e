"""Memory of the server side, sampled while it is under pressure."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from brisk_bench.harness.processes import KINDS
from brisk_bench.harness.report import Report, check_limit
from brisk_bench.harness.served_server import BenchmarkServer

MEMORIES = (*(f"{kind}_rss" for kind in KINDS), "dev_shm", "memfd")
"""Resident bytes by kind of process; files in /dev/shm; Brisk's own shared memory, each once."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def sampled_memory(
    server: BenchmarkServer, after_s: float, seconds: float
) -> Iterator[list[dict[str, int]]]:
    """Sample memory, by the names of MEMORIES, each second, while entered.

    A thread takes the samples: from ``after_s`` after the beginning on, for ``seconds``.
    """
    samples: list[dict[str, int]] = []
    ended = threading.Event()

    def take() -> None:
        begin_s = time.monotonic() + after_s
        for number in range(round(seconds)):
            if ended.wait(max(0.0, begin_s + number - time.monotonic())):
                return
            samples.append(held(server))

    thread = threading.Thread(target=take, name="memory-sampler", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join(timeout=10.0)


def held(server: BenchmarkServer) -> dict[str, int]:
    """Return the bytes held now, by the names of MEMORIES."""
    held_bytes: Counter[str] = Counter(dict.fromkeys(MEMORIES, 0))
    memfds: dict[int, int] = {}
    for process in server.processes():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = Path(f"/proc/{process.pid}/statm").read_text().split()
            held_bytes[f"{process.kind}_rss"] += int(fields[1]) * _PAGE_BYTES
            memfds |= _memfds(process.pid)
    held_bytes["memfd"] = sum(memfds.values())
    for file in Path("/dev/shm").iterdir():
        with contextlib.suppress(OSError):
            held_bytes["dev_shm"] += file.stat().st_blocks * 512
    return dict(held_bytes)


def _memfds(pid: int) -> dict[int, int]:
    """Return allocated bytes of the memfds that ``pid`` holds open, by inode."""
    sizes = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(entry).startswith("/memfd:"):
                status = entry.stat()
                sizes[status.st_ino] = status.st_blocks * 512
    return sizes


def growth(values: Sequence[float], window: int) -> float:
    """Return the mean of the last ``window`` values over that of the first, less 1.

    0 if both are 0.

    Raises ValueError if the values do not cover both.
    """
    if len(values) < 2 * window:
        raise ValueError(f"the samples are shorter than twice {window} s")
    before, after = statistics.fmean(values[:window]), statistics.fmean(values[-window:])
    if not before:
        return 0.0 if not after else float("inf")
    return after / before - 1


def report_memory(
    report: Report, samples: Sequence[Mapping[str, int]], window_s: int, limit: float
) -> None:
    """Add a row of each of MEMORIES, and a check that none has grown by more than ``limit``."""
    for name in MEMORIES:
        held_mib = [sample[name] / 2**20 for sample in samples]
        grown = growth(held_mib, window_s)
        report.rows.append(
            {
                "kind": "memory",
                "what": name,
                "first_mib": held_mib[0],
                "last_mib": held_mib[-1],
                "greatest_mib": max(held_mib),
                "growth_percent": grown * 100,
            }
        )
        text = f"growth of {name.replace('_', ' ')}, first to last {window_s:g} s, percent"
        report.checks.append(check_limit(text, grown * 100, "<=", limit * 100))
