"""Starts by where a model's bytes are: in this host's memory, on its disk, at a peer, in the
registry (Flashpoint, figure 8.5)."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brisk_bench.cold import page_cache
from brisk_bench.engines.case import Case
from brisk_bench.fleet.programs import HostProgram
from brisk_bench.fleet.remote_entries import ENTRY
from brisk_bench.harness.report import Report, check_limit
from brisk_bench.harness.sampling import in_rounds
from brisk_bench.sourcing import host
from brisk_bench.sourcing.scene import HOST, PEER, REGISTRY, Scene, told

PART = "levels"

PLAIN, MEMORY, DISK = "plain entry", "local memory", "local disk"
PEER_MEMORY, PEER_DISK, FROM_REGISTRY = "peer's memory", "peer's disk", "registry"
LEVELS = (PLAIN, MEMORY, DISK, PEER_MEMORY, PEER_DISK, FROM_REGISTRY)

RATES_MBIT_S = {REGISTRY: 200.0, HOST: 500.0, PEER: 500.0}

MOST_OVER = 1.10
"""The most of each level's first answer over its bound."""

LEAST_SOONER = 30.0
"""The least of the registry's time over local memory's (Flashpoint: 45.8)."""

NOTES = (
    "levels: first: from the load call to the first answer, median over rounds. local memory, "
    "plain entry: unloaded and loaded again by a server that stays, all files in the page cache; "
    "the first is an entry whose model lies elsewhere, with its copy here, the second one with "
    "the model in the repository. local disk: the same as local memory, all files of the cache "
    "out of the page cache. The others: a new server with an empty cache",
    "levels: bound: of local memory the plain entry's time; of the others the bytes that the "
    "start reads (mb) over what was measured of the link or the disk (mbit_s; of the peer's disk "
    "the slower of both), and local memory's time. cached_mb: what was in the page cache of all "
    "that lies there when the load was asked for. from_peer: share of the bytes that came",
)


def measure(report: Report, scene: Scene, case: Case, rounds: int) -> None:
    """Add rows and checks."""
    remote = scene.publish(case.file, PART, with_form=True)
    with contextlib.ExitStack() as stack:
        starting = stack.enter_context(scene.starting(case))
        having = stack.enter_context(scene.with_copy())
        having.hear(120.0)
        having.say(**json.loads(remote))
        told(starting, "keep", remote=remote)  # links are not shaped yet
        having.hear(120.0)
        report.notes.extend(f"links: {line}" for line in scene.shape(RATES_MBIT_S))

        def start(level: str) -> Mapping[str, Any]:
            return _start(scene, starting, having, remote, level)

        starts, _ = in_rounds(LEVELS, rounds, start)
    report.rows.extend(rows(case.name, starts, scene.mbit_s(REGISTRY), scene.mbit_s(PEER)))
    add_checks(report)


def _start(
    scene: Scene, starting: HostProgram, having: HostProgram, remote: str, level: str
) -> Mapping[str, Any]:
    """Start once at a level; return its times and what is known of its bytes."""
    if level in (PLAIN, MEMORY, DISK):
        entry = host.PLAIN if level == PLAIN else ENTRY
        place = page_cache.DISK if level == DISK else page_cache.MEMORY
        return told(starting, "here", entry=entry, place=place)
    if level == FROM_REGISTRY:
        return {**told(starting, "away", remote=remote), "bytes_per_s": 0.0}
    having.say(**{"from": page_cache.DISK if level == PEER_DISK else page_cache.MEMORY})
    state = having.hear(120.0)
    return {**told(starting, "away", remote=remote, environment=scene.by_peer), **state}


def rows(
    model: str,
    found: Mapping[str, Sequence[Mapping[str, Any]]],
    registry_mbit_s: float,
    peer_mbit_s: float,
) -> Iterator[dict[str, Any]]:
    """Yield one row for each level, with its bound."""
    first_s = {
        level: statistics.median(start["first_s"] for start in starts)
        for level, starts in found.items()
    }
    for level, starts in found.items():
        needed_bytes = max(start["needed_bytes"] for start in starts)
        disk_mbit_s = statistics.median(start["bytes_per_s"] for start in starts) * 8e-6
        mbit_s = {
            DISK: disk_mbit_s,
            PEER_MEMORY: peer_mbit_s,
            PEER_DISK: min(peer_mbit_s, disk_mbit_s),
            FROM_REGISTRY: registry_mbit_s,
        }.get(level)
        row: dict[str, Any] = {"part": PART, "model": model, "level": level}
        row["first_s"] = first_s[level]
        firsts = [start["first_s"] for start in starts]
        row["spread_s"] = max(firsts) - min(firsts)
        row["mb"] = needed_bytes / 1e6
        if mbit_s is not None:
            row["mbit_s"] = mbit_s
        if level != PLAIN:
            bound_s = bound(needed_bytes, mbit_s, first_s[MEMORY if mbit_s else PLAIN])
            row["bound_s"] = bound_s
            row["over"] = first_s[level] / bound_s
        if all("cached" in start for start in starts):
            row["cached_mb"] = statistics.median(start["cached"] for start in starts) / 1e6
        if level in (PEER_MEMORY, PEER_DISK):
            row["from_peer"] = statistics.median(_share(start["sources"]) for start in starts)
        if level in (PEER_MEMORY, PEER_DISK, FROM_REGISTRY):
            row["took"] = ", ".join(sorted({str(start["took"]) for start in starts}))
        yield row


def bound(needed_bytes: int, mbit_s: float | None, start_s: float) -> float:
    """Return seconds: the bytes at that rate, then a start from memory."""
    return start_s if mbit_s is None else needed_bytes * 8e-6 / mbit_s + start_s


def _share(sources: Mapping[str, int]) -> float:
    """Return the share of the bytes that came from peers, not from the URL."""
    whole = sum(sources.values())
    peers = sum(size for name, size in sources.items() if "://" not in name)
    return peers / whole if whole else 0.0


def add_checks(report: Report) -> None:
    """Add every check that the rows allow."""
    by_level = {row["level"]: row for row in report.rows if row.get("part") == PART}
    for level, row in by_level.items():
        if "over" in row:
            text = f"{row['model']} from {level}: first answer over its bound"
            report.checks.append(check_limit(text, row["over"], "<=", MOST_OVER, digits=3))
    memory, registry = by_level[MEMORY], by_level[FROM_REGISTRY]
    text = f"{memory['model']}: from the registry at {RATES_MBIT_S[REGISTRY]:g} Mbit/s over memory"
    sooner = registry["first_s"] / memory["first_s"]
    report.checks.append(check_limit(text, sooner, ">=", LEAST_SOONER, digits=1))
