"""Rows from samples: medians, ratios within a round or a sample, speed-ups by batch size."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brisk_client.benchmarks.cold.engines import (
    BARE_PEERS,
    BASE,
    OTHER_WEIGHTS,
    PREPARED,
    PREPARED_PEERS,
    UNPREPARED,
)
from brisk_client.benchmarks.cold.measure import EngineSamples
from brisk_client.benchmarks.engines.agreement import agree, load_answers
from brisk_client.benchmarks.harness.sampling import median_ratio, summarise

Measured = Mapping[str, EngineSamples]
"""Samples of one model by engine."""

OVER_BARE, OVER_PREPARED = "over_bare_peer", "over_prepared_peer"
"""Keys: how many times as long the sooner of ONNX Runtime's starts from the bare file takes, and
the sooner of its prepared ones."""

_INFERENCES = ("first", "second", "third")


def speedup(measured: Measured, engine: str, base: str) -> float:
    """``base``'s first answer over ``engine``'s, the median over rounds."""
    pairs = zip(measured[base].samples, measured[engine].samples, strict=False)
    return median_ratio([(theirs.first_s, ours.first_s) for theirs, ours in pairs])


def rows(part: str, model: str, batch: int, measured: Measured) -> list[dict[str, Any]]:
    """One row an engine, times in ms."""
    return [_row(part, model, batch, measured, name) for name in measured]


def _row(part: str, model: str, batch: int, measured: Measured, name: str) -> dict[str, Any]:
    taken = measured[name]
    first = summarise([sample.first_s for sample in taken.samples])
    row: dict[str, Any] = {
        "part": part,
        "model": model,
        "batch": batch,
        "engine": name,
        "first_ms": first.median * 1e3,
        "spread_ms": first.spread * 1e3,
        "processor_ms": statistics.median(s.processor_s for s in taken.samples) * 1e3,
        **_following(taken),
        "samples": len(taken.samples),
    }
    if BASE in measured:
        row["speedup"] = round(speedup(measured, name, BASE), 2)
    for key, peers in ((OVER_BARE, BARE_PEERS), (OVER_PREPARED, PREPARED_PEERS)):
        found = [peer for peer in peers if peer in measured]
        if found:
            soonest = min(found, key=lambda peer: _median_first_s(measured[peer]))
            row[key] = round(speedup(measured, name, soonest), 2)
    if taken.disk_s:
        row["read_ms"] = statistics.median(taken.disk_s) * 1e3
        row["first_over_read"] = round(first.median / statistics.median(taken.disk_s), 2)
    return row


def _median_first_s(taken: EngineSamples) -> float:
    return statistics.median(sample.first_s for sample in taken.samples)


def _following(taken: EngineSamples) -> dict[str, Any]:
    """Times of the inferences after the first and of warm ones, and each over warm ones.

    Without warm ones, where an inference takes long, the second stands for them.
    """
    found: dict[str, Any] = {}
    for place, name in enumerate(_INFERENCES[1:]):
        times = [s.following_s[place] for s in taken.samples if len(s.following_s) > place]
        if times:
            found[f"{name}_ms"] = statistics.median(times) * 1e3
    if not all(sample.warm_s for sample in taken.samples):
        return found
    warm_s = [statistics.median(sample.warm_s) for sample in taken.samples]
    found["warm_ms"] = statistics.median(warm_s) * 1e3
    for place, name in enumerate(_INFERENCES):
        over = [
            (sample.first_s, *sample.following_s)[place] / own_warm_s
            for sample, own_warm_s in zip(taken.samples, warm_s, strict=True)
        ]
        found[f"{name}_over_warm"] = round(statistics.median(over), 3)
    return found


def agreements(folder: Path, engines: Iterable[str]) -> dict[str, bool]:
    """Whether first answers, ``folder``/ENGINE.npz, are ONNX Runtime's; empty without those."""
    base = folder / f"{BASE}.npz"
    if not base.exists():
        return {}
    expected = load_answers(base)
    return {
        engine: agree(load_answers(folder / f"{engine}.npz"), expected, scaled=True)
        for engine in engines
        if engine not in OTHER_WEIGHTS and (folder / f"{engine}.npz").exists()
    }


def batch_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Speed-ups by batch size (PASK, Table II), a row for each size and engine; none where only
    one size was measured. ``warm`` is Brisk's second answer."""
    hot = [row for row in rows if row["part"] == "process"]
    sizes = sorted({row["batch"] for row in hot})
    found: list[dict[str, Any]] = []
    for batch in sizes if len(sizes) > 1 else ():
        gains: dict[str, list[float]] = {UNPREPARED: [], PREPARED: [], "warm": []}
        of_size = [row for row in hot if row["batch"] == batch]
        base_ms = {row["model"]: row["first_ms"] for row in of_size if row["engine"] == BASE}
        for row in of_size:
            if row["engine"] in gains and row["model"] in base_ms:
                gains[row["engine"]].append(base_ms[row["model"]] / row["first_ms"])
                if row["engine"] == PREPARED:
                    gains["warm"].append(base_ms[row["model"]] / row["second_ms"])
        found += [
            {
                "part": "batches",
                "batch": batch,
                "engine": engine,
                "models": len(values),
                "over_onnxruntime": round(statistics.geometric_mean(values), 2),
            }
            for engine, values in gains.items()
            if values
        ]
    return found
