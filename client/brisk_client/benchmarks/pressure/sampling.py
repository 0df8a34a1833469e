"""What the server side holds, sampled while it is under pressure."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk_client.benchmarks.harness.served_server import KINDS, BenchmarkServer
from brisk_client.report import Report, check_limit

INTERVAL_S = 1.0

MEMORIES = (*(f"{kind}_rss" for kind in KINDS), "dev_shm", "memfd")
"""Resident bytes by kind of process; files in /dev/shm; Brisk's own shared memory, each once."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class MemorySample:
    """``held_bytes`` by the names of MEMORIES, ``at_s`` after the beginning."""

    at_s: float
    held_bytes: dict[str, int]


@contextlib.contextmanager
def sampled_memory(server: BenchmarkServer) -> Iterator[list[MemorySample]]:
    """Samples, one more every second while entered, taken by a thread."""
    samples: list[MemorySample] = []
    ended = threading.Event()

    def take() -> None:
        started_s = time.monotonic()
        while not ended.wait(INTERVAL_S):
            samples.append(MemorySample(time.monotonic() - started_s, held(server)))

    thread = threading.Thread(target=take, name="memory-sampler", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join(timeout=10.0)


def held(server: BenchmarkServer) -> dict[str, int]:
    """Bytes held now, by the names of MEMORIES."""
    found: Counter[str] = Counter(dict.fromkeys(MEMORIES, 0))
    memfds: dict[int, int] = {}
    for process in server.processes():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = Path(f"/proc/{process.pid}/statm").read_text().split()
            found[f"{process.kind}_rss"] += int(fields[1]) * _PAGE_BYTES
            memfds |= _memfds(process.pid)
    found["memfd"] = sum(memfds.values())
    for file in Path("/dev/shm").iterdir():
        with contextlib.suppress(OSError):
            found["dev_shm"] += file.stat().st_blocks * 512
    return dict(found)


def _memfds(pid: int) -> dict[int, int]:
    """Allocated bytes of the memfds that ``pid`` holds open, by inode."""
    sizes = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(entry).startswith("/memfd:"):
                status = entry.stat()
                sizes[status.st_ino] = status.st_blocks * 512
    return sizes


def since(
    samples: Sequence[MemorySample], begin_s: float, duration_s: float
) -> list[MemorySample]:
    """The samples of the ``duration_s`` that began at ``begin_s``, their times counted from it."""
    return [
        MemorySample(sample.at_s - begin_s, sample.held_bytes)
        for sample in samples
        if begin_s <= sample.at_s <= begin_s + duration_s
    ]


def growth(samples: Sequence[MemorySample], name: str, window_s: float) -> float:
    """Mean of the last ``window_s`` over that of the first, less 1; 0 where nothing is held.

    Raises ValueError where the samples do not cover both.
    """
    if not samples or samples[-1].at_s < 2 * window_s - INTERVAL_S:
        raise ValueError(f"the samples are shorter than twice {window_s:g} s")
    last_s = samples[-1].at_s
    before = statistics.fmean(s.held_bytes[name] for s in samples if s.at_s <= window_s)
    after = statistics.fmean(s.held_bytes[name] for s in samples if s.at_s > last_s - window_s)
    if not before:
        return 0.0 if not after else float("inf")
    return after / before - 1


def report_memory(
    report: Report, samples: Sequence[MemorySample], window_s: float, limit: float
) -> None:
    """Add a row of each of MEMORIES, and a check that none has grown by more than ``limit``."""
    for name in MEMORIES:
        held_mib = [sample.held_bytes[name] / 2**20 for sample in samples]
        grown = growth(samples, name, window_s)
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
