"""The checks of the rows of `brisk bench throughput`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from brisk_bench.harness.report import Report, check_limit
from brisk_bench.throughput.sides import BRISK, CPP, JOINED, PYTHON

CLOSED, MIX = "closed", "mix"

SMALL_MS = 5.0
"""The p50 of the fastest peer, with the fewest clients, below which a model is small."""

COMPARED = (1, 4, 16)
LEAST, LEAST_MEAN = 1.0, 1.1
"""The least throughput of a small model over the better Python peer's, each and geometric mean."""

LEAST_CPP, CPP_CLIENTS = 0.8, 16
LEAST_MIX = 1.2
MOST_PROCESSOR = 1.2
"""The most processor time a request over the joined Python peer's, with 16 clients."""

MOST_P50, MOST_P99 = 1.0, 1.05
"""The most of one client's latency of a small model over the better Python peer's."""

MOST_MEAN_LARGE, MOST_P99_LARGE = 1.01, 1.05
"""The most of larger models' latency over the better Python peer's, with 1 and 4 clients."""

Row = Mapping[str, Any]


def add_checks(report: Report) -> None:
    ratios: list[float] = []
    for key, loads in _closed(report.rows).items():
        for count, sides in loads.items():
            _judge(report, key, count, sides, ratios, small=_is_small(loads))
    if ratios:
        mean = statistics.geometric_mean(ratios)
        name = "small models: throughput over the better Python peer, geometric mean"
        report.checks.append(check_limit(name, mean, ">=", LEAST_MEAN, 3))


def _closed(rows: Sequence[Row]) -> dict[tuple[str, bool, str], dict[int, dict[str, Row]]]:
    """Return rows of closed loops: by model, batching and transport, then clients, then side."""
    groups: dict[tuple[str, bool, str], dict[int, dict[str, Row]]] = {}
    for row in rows:
        if row["load"] == CLOSED:
            key = row["model"], row["batching"], row["transport"]
            groups.setdefault(key, {}).setdefault(row["clients"], {})[row["side"]] = row
    return groups


def _is_small(loads: Mapping[int, Mapping[str, Row]]) -> bool:
    sides = loads[min(loads)]
    return bool(min(row["p50_ms"] for side, row in sides.items() if side != BRISK) < SMALL_MS)


def _judge(
    report: Report,
    key: tuple[str, bool, str],
    count: int,
    sides: Mapping[str, Row],
    ratios: list[float],
    *,
    small: bool,
) -> None:
    model, batching, transport = key
    label = f"{model}, {'dynamic' if batching else 'no'} batching, {transport}, {count} clients"

    def check(name: str, value: float | str, comparison: str, limit: float) -> None:
        report.checks.append(check_limit(f"{label}: {name}", value, comparison, limit, 3))

    ours = sides[BRISK]
    peers = [sides[name] for name in (PYTHON, JOINED) if name in sides]
    if count in COMPARED:
        ratio = ours["per_s"] / max(peer["per_s"] for peer in peers)
        if model == MIX:
            check("throughput over the better Python peer", ratio, ">=", LEAST_MIX)
        elif small:
            ratios.append(ratio)
            check("throughput over the better Python peer", ratio, ">=", LEAST)
    if small and count == CPP_CLIENTS:
        if JOINED in sides:
            ratio = ours["us"] / sides[JOINED]["us"]
            check("processor time over the joined Python peer", ratio, "<=", MOST_PROCESSOR)
        if CPP in sides:
            ratio = ours["per_s"] / sides[CPP]["per_s"]
            check("throughput over the C++ backend", ratio, ">=", LEAST_CPP)
    p50 = ours["p50_ms"] / min(peer["p50_ms"] for peer in peers)
    if small and count == 1 and model != MIX:
        check("p50 over the better Python peer", p50, "<=", MOST_P50)
        check("p99 over the better Python peer", _tails(ours, peers), "<=", MOST_P99)
    if not small and count in (1, 4):
        mean = max(peer["per_s"] for peer in peers) / ours["per_s"]
        check("mean latency over the better Python peer", mean, "<=", MOST_MEAN_LARGE)
        check("p99 over the better Python peer", _tails(ours, peers), "<=", MOST_P99_LARGE)


def _tails(ours: Row, peers: Sequence[Row]) -> float | str:
    """Return our p99 over the least of theirs, or what one of them lacks."""
    for row in (ours, *peers):
        if isinstance(row["p99_ms"], str):
            return row["p99_ms"]
    return float(ours["p99_ms"] / min(peer["p99_ms"] for peer in peers))
