"""Rows and checks from samples: medians, ratios within one run, what the issue expects."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from brisk_client.benchmarks.cold.breakdown import shares, utilisation
from brisk_client.benchmarks.cold.measure import EngineSamples
from brisk_client.benchmarks.cold.registry import BASE, PREPARED, UNPREPARED
from brisk_client.benchmarks.sampling import median_ratio, summarise
from brisk_client.report import Check

Measured = Mapping[str, EngineSamples]
"""Samples of one model by engine."""

FIRST_OVER_WARM, SECOND_OVER_WARM, THIRD_OVER_WARM = 1.25, 1.1, 1.1
PREPARED_SPEEDUP, UNPREPARED_SPEEDUP = 4.0, 2.0
SPEEDUP_MODEL = "resnet50"


def median_first_s(samples: EngineSamples) -> float:
    return statistics.median(sample.first_s for sample in samples.samples)


def median_warm_s(samples: EngineSamples) -> float:
    """The median over samples of each sample's median warm inference."""
    return statistics.median(statistics.median(sample.warm_s) for sample in samples.samples)


def speedup(measured: Measured, engine: str, base: str) -> float:
    """``base``'s first answer over ``engine``'s, the median over rounds."""
    pairs = zip(measured[base].samples, measured[engine].samples, strict=False)
    return median_ratio([(theirs.first_s, ours.first_s) for theirs, ours in pairs])


def geometric_mean(values: Sequence[float]) -> float:
    """Precondition: at least one value, all positive."""
    return statistics.geometric_mean(values)


def typical(samples: EngineSamples) -> Mapping[str, Any]:
    """Details of the sample whose first answer is the (lower) median."""
    ordered = sorted(samples.samples, key=lambda sample: sample.first_s)
    return ordered[(len(ordered) - 1) // 2].details


def rows(part: str, model: str, batch: int, measured: Measured) -> list[dict[str, Any]]:
    """One row an engine, times in ms."""
    return [_row(part, model, batch, measured, name) for name in measured]


def _row(part: str, model: str, batch: int, measured: Measured, name: str) -> dict[str, Any]:
    samples = measured[name]
    first = summarise([sample.first_s for sample in samples.samples])
    second, third = (
        statistics.median(sample.following_s[place] for sample in samples.samples)
        for place in (0, 1)
    )
    row: dict[str, Any] = {
        "part": part,
        "model": model,
        "batch": batch,
        "engine": name,
        "first_ms": first.median * 1e3,
        "spread_ms": first.spread * 1e3,
        "processor_ms": statistics.median(s.processor_s for s in samples.samples) * 1e3,
        "second_ms": second * 1e3,
        "third_ms": third * 1e3,
        "warm_ms": median_warm_s(samples) * 1e3,
        "samples": len(samples.samples),
    }
    if BASE in measured:
        row["speedup"] = round(speedup(measured, name, BASE), 2)
    if samples.disk_s:
        row["read_ms"] = statistics.median(samples.disk_s) * 1e3
        row["first_over_read"] = round(first.median / statistics.median(samples.disk_s), 2)
    details = typical(samples)
    if "timeline" in details:
        span = (details["timeline"], details["started_ns"], details["answered_ns"])
        row["utilisation"] = round(utilisation(*span), 3)
    return row


def breakdown_rows(model: str, measured: Measured) -> list[dict[str, Any]]:
    """Shares of the first answer's time by phase, of the engines that keep a timeline."""
    found = []
    for name, samples in measured.items():
        details = typical(samples)
        if details.get("timeline"):
            span = (details["timeline"], details["started_ns"], details["answered_ns"])
            parts = {phase: round(share, 3) for phase, share in shares(*span).items()}
            found.append({"part": "breakdown", "model": model, "engine": name, **parts})
    return found


def reuse_rows(model: str, measured: Measured) -> list[dict[str, Any]]:
    """Hit rate and look-ups a query (PASK, Fig. 9) of the schemes that asked the cache."""
    found = []
    for name, samples in measured.items():
        told = typical(samples).get("statistics")
        if told is None:
            continue
        queries = told["queries"]
        found.append(
            {
                "part": "reuse",
                "model": model,
                "engine": name,
                "layers": told["layers"],
                "milestone": told["milestone"],
                "queries": queries,
                "hit_rate": round(told["hits"] / queries, 3) if queries else None,
                "lookups_per_query": round(told["lookups"] / queries, 2) if queries else None,
                "reused": told["reused"],
                "loaded": told["loaded"],
                "stolen": told["stolen"],
                "cached_layers": told["cached_layers"],
            }
        )
    return found


def in_process_checks(by_model: Mapping[str, Measured]) -> list[Check]:
    """What the issue expects of a first answer with the page cache hot."""
    checks: list[Check] = []
    speedups: dict[str, list[float]] = {PREPARED: [], UNPREPARED: []}
    for model, measured in by_model.items():
        if PREPARED in measured:
            checks += _warmth_checks(model, measured[PREPARED])
        for name in speedups:
            if name in measured and BASE in measured:
                speedups[name].append(speedup(measured, name, BASE))
    for name, limit in ((PREPARED, PREPARED_SPEEDUP), (UNPREPARED, UNPREPARED_SPEEDUP)):
        ours = by_model.get(SPEEDUP_MODEL, {})
        if name in ours and BASE in ours:
            found = speedup(ours, name, BASE)
            checks.append(at_least(f"{SPEEDUP_MODEL}: {name}, speed-up over {BASE}", found, limit))
        if len(speedups[name]) > 1:
            found = geometric_mean(speedups[name])
            text = f"{len(speedups[name])} models: {name}, geometric mean of speed-ups over {BASE}"
            checks.append(at_least(text, found, limit))
    return checks


def _warmth_checks(model: str, samples: EngineSamples) -> list[Check]:
    """First, second and third inference over warm ones, each within its own sample."""
    limits = (FIRST_OVER_WARM, SECOND_OVER_WARM, THIRD_OVER_WARM)
    found: list[list[float]] = [[], [], []]
    for sample in samples.samples:
        warm_s = statistics.median(sample.warm_s)
        for place, took_s in enumerate((sample.first_s, *sample.following_s[:2])):
            found[place].append(took_s / warm_s)
    return [
        at_most(
            f"{model}: {samples.engine}, {name} inference over warm", statistics.median(r), limit
        )
        for name, r, limit in zip(("first", "second", "third"), found, limits, strict=True)
    ]


def at_most(name: str, found: float, limit: float) -> Check:
    return Check(name, round(found, 3), f"<= {limit}", found <= limit)


def at_least(name: str, found: float, limit: float) -> Check:
    return Check(name, round(found, 3), f">= {limit}", found >= limit)
