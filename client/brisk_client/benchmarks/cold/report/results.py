"""Rows from samples: medians, and ratios within a round or a sample."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from brisk_client.benchmarks.cold.measure import EngineSamples
from brisk_client.benchmarks.cold.registry import (
    BARE_PEERS,
    BASE,
    PREPARED_PEERS,
)
from brisk_client.benchmarks.harness.sampling import median_ratio, summarise

Measured = Mapping[str, EngineSamples]
"""Samples of one model by engine."""

OVER_BARE, OVER_PREPARED = "over_bare_peer", "over_prepared_peer"
"""Keys: how many times as long the sooner of ONNX Runtime's starts from the bare file takes, and
the sooner of its prepared ones."""

_INFERENCES = ("first", "second", "third")


def median_warm_s(samples: EngineSamples) -> float:
    """The median over samples of each sample's median warm inference."""
    return statistics.median(statistics.median(sample.warm_s) for sample in samples.samples)


def speedup(measured: Measured, engine: str, base: str) -> float:
    """``base``'s first answer over ``engine``'s, the median over rounds."""
    pairs = zip(measured[base].samples, measured[engine].samples, strict=False)
    return median_ratio([(theirs.first_s, ours.first_s) for theirs, ours in pairs])


def soonest(measured: Measured, engines: Sequence[str]) -> str | None:
    """That of ``engines`` whose median first answer comes first; None where none was measured."""
    found = [engine for engine in engines if engine in measured]
    return min(
        found,
        key=lambda name: statistics.median(each.first_s for each in measured[name].samples),
        default=None,
    )


def rows(part: str, model: str, batch: int, measured: Measured) -> list[dict[str, Any]]:
    """One row an engine, times in ms."""
    return [_row(part, model, batch, measured, name) for name in measured]


def _row(part: str, model: str, batch: int, measured: Measured, name: str) -> dict[str, Any]:
    samples = measured[name]
    first = summarise([sample.first_s for sample in samples.samples])
    row: dict[str, Any] = {
        "part": part,
        "model": model,
        "batch": batch,
        "engine": name,
        "first_ms": first.median * 1e3,
        "spread_ms": first.spread * 1e3,
        "processor_ms": statistics.median(s.processor_s for s in samples.samples) * 1e3,
        **_following(samples),
        "samples": len(samples.samples),
    }
    if BASE in measured:
        row["speedup"] = round(speedup(measured, name, BASE), 2)
    for key, peers in ((OVER_BARE, BARE_PEERS), (OVER_PREPARED, PREPARED_PEERS)):
        if (peer := soonest(measured, peers)) is not None:
            row[key] = round(speedup(measured, name, peer), 2)
    if samples.disk_s:
        row["read_ms"] = statistics.median(samples.disk_s) * 1e3
        row["first_over_read"] = round(first.median / statistics.median(samples.disk_s), 2)
    return row


def _following(samples: EngineSamples) -> dict[str, Any]:
    """Times of the inferences after the first and of warm ones, and each over warm ones.

    Without warm ones, where an inference takes long, the second stands for them.
    """
    found: dict[str, Any] = {}
    for place, name in enumerate(_INFERENCES[1:]):
        times = [s.following_s[place] for s in samples.samples if len(s.following_s) > place]
        if times:
            found[f"{name}_ms"] = statistics.median(times) * 1e3
    if not all(sample.warm_s for sample in samples.samples):
        return found
    found["warm_ms"] = median_warm_s(samples) * 1e3
    for place, name in enumerate(_INFERENCES):
        over = [
            (sample.first_s, *sample.following_s)[place] / statistics.median(sample.warm_s)
            for sample in samples.samples
        ]
        found[f"{name}_over_warm"] = round(statistics.median(over), 3)
    return found
