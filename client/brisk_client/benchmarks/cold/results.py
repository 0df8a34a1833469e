"""Rows from samples, and what is expected of them, as checks, whichever run they are of."""

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
from brisk_client.report import Check

Rows = Sequence[Mapping[str, Any]]

Measured = Mapping[str, EngineSamples]
"""Samples of one model by engine."""

OVER_BARE, OVER_PREPARED = "over_bare_peer", "over_prepared_peer"
"""Keys: how many times as long the sooner of ONNX Runtime's starts from the bare file takes, and
the sooner of its prepared ones."""

UNMEASURED, NO_ENGINE = "unmeasured", "none"
"""The part of rows that hold a ``reason`` instead of times, and their engine where the model is
to blame."""

WARMTH = {"first": 1.25, "second": 1.1, "third": 1.1}
"""An inference after the load over warm ones, at most; a tenth is the machine's noise."""

SPEEDUPS = {PREPARED: 4.0, UNPREPARED: 2.0}
"""ONNX Runtime's time at its defaults over ours, at least."""

PEERS = {PREPARED: (OVER_PREPARED, "prepared"), UNPREPARED: (OVER_BARE, "from the bare file")}
"""ONNX Runtime by its own means, the sooner of two: its time over ours, each model's and the
geometric mean, at least PEER."""

PEER = 1.0

SPEEDUP_MODEL, PREPARE_S = "resnet50", 10.0

SERVED = {"torch": 8.0, "onnxruntime": 3.0}
"""A Python-backend model's time through Triton over Brisk's, at least."""

_INFERENCES = ("first", "second", "third")


def speedup(measured: Measured, engine: str, base: str) -> float:
    """``base``'s first answer over ``engine``'s, the median over rounds."""
    pairs = zip(measured[base].samples, measured[engine].samples, strict=False)
    return median_ratio([(theirs.first_s, ours.first_s) for theirs, ours in pairs])


def rows_of(part: str, model: str, batch: int, measured: Measured) -> list[dict[str, Any]]:
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


def batch_rows(rows: Rows) -> list[dict[str, Any]]:
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


def all_checks(rows: Rows) -> list[Check]:
    """Every expectation that the rows suffice for."""
    hot = [row for row in rows if row["part"] == "process" and row["batch"] == 1]
    return [
        *_agreement(rows),
        *_warmth(hot),
        *_speedups(hot),
        *_peers(hot),
        *_unmeasured(rows),
        *_preparation(hot),
        *_disk(rows),
        *_load(rows),
        *_served(rows),
    ]


def at_most(name: str, found: float, limit: float) -> Check:
    return Check(name, round(found, 3), f"<= {limit}", found <= limit)


def at_least(name: str, found: float, limit: float) -> Check:
    return Check(name, round(found, 3), f">= {limit}", found >= limit)


def _by_model(rows: Rows, engine: str, key: str) -> dict[str, float]:
    """Values of ``key``, of the models whose row has it."""
    return {row["model"]: row[key] for row in rows if row["engine"] == engine and key in row}


def _agreement(rows: Rows) -> list[Check]:
    """Each engine's first answer is ONNX Runtime's, where it computes with the same weights."""
    found: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        if row.get("agrees") is not None:
            wrong = found.setdefault((row["model"], row["batch"]), [])
            wrong += [] if row["agrees"] else [row["engine"]]
    return [
        Check(
            f"{model}, batch {batch}: first answers agree with {BASE}'s",
            f"not those of {', '.join(wrong)}" if wrong else "all",
            "all",
            not wrong,
        )
        for (model, batch), wrong in found.items()
    ]


def _warmth(hot: Rows) -> list[Check]:
    return [
        at_most(f"{row['model']}: {PREPARED}, {name} inference over warm", row[key], limit)
        for row in hot
        for name, limit in WARMTH.items()
        if row["engine"] == PREPARED and (key := f"{name}_over_warm") in row
    ]


def _speedups(hot: Rows) -> list[Check]:
    checks = []
    for engine, limit in SPEEDUPS.items():
        found = _by_model(hot, engine, "speedup")
        if SPEEDUP_MODEL in found:
            text = f"{SPEEDUP_MODEL}: {engine}, speed-up over {BASE}"
            checks.append(at_least(text, found[SPEEDUP_MODEL], limit))
        if len(found) > 1:
            text = f"{len(found)} models: {engine}, geometric mean of speed-ups over {BASE}"
            checks.append(at_least(text, statistics.geometric_mean(found.values()), limit))
    return checks


def _peers(hot: Rows) -> list[Check]:
    checks = []
    for engine, (key, state) in PEERS.items():
        found = _by_model(hot, engine, key)
        for model, over in found.items():
            checks.append(at_least(f"{model}: {engine} over {BASE} {state}", over, PEER))
        if len(found) > 1:
            text = f"{len(found)} models: {engine} over {BASE} {state}, geometric mean"
            checks.append(at_least(text, statistics.geometric_mean(found.values()), PEER))
    return checks


def _unmeasured(rows: Rows) -> list[Check]:
    """What Brisk does not answer, and models that no engine was asked about."""
    return [
        Check(f"{row['model']}: {row['engine']} answers", row["reason"], "an answer", False)
        for row in rows
        if row["part"] == UNMEASURED and row["engine"] in (PREPARED, UNPREPARED, NO_ENGINE)
    ]


def _preparation(hot: Rows) -> list[Check]:
    found = _by_model(hot, PREPARED, "prepare_s")
    return [
        at_most(f"{model}: seconds to prepare", took_s, PREPARE_S)
        for model, took_s in found.items()
        if model == SPEEDUP_MODEL
    ]


def _disk(rows: Rows) -> list[Check]:
    """The disk bounds a start: what else it does is hidden behind the reading, or follows it."""
    return [
        at_most(
            f"{row['model']}: {PREPARED} from the disk over reading and then a hot start",
            row["first_ms"] / (row["read_ms"] + row["hot_ms"]),
            1.0,
        )
        for row in rows
        if row["part"] == "disk" and row["engine"] == PREPARED and "hot_ms" in row
    ]


def _load(rows: Rows) -> list[Check]:
    """Other load slows a prepared start by no more than it slows ONNX Runtime's (NNV12, 4.2)."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["part"] == "load" and row.get("over_idle") is not None:
            found.setdefault((row["model"], row["load"]), {})[row["engine"]] = row["over_idle"]
    return [
        at_most(
            f"{model}: {PREPARED} beside {load}, its slow-down over {BASE}'s",
            slowdowns[PREPARED] / slowdowns[BASE],
            WARMTH["third"],
        )
        for (model, load), slowdowns in found.items()
        if slowdowns.keys() >= {PREPARED, BASE}
    ]


def _served(rows: Rows) -> list[Check]:
    served = [row for row in rows if row["part"] == "served" and "over_brisk" in row]
    limits = [(row, SERVED[row["engine"]]) for row in served if row["engine"] in SERVED]
    for model in dict.fromkeys(row["model"] for row in served):
        peers = [
            row for row in served if row["model"] == model and row["engine"] in PREPARED_PEERS
        ]
        if peers:
            limits.append((min(peers, key=lambda row: float(row["over_brisk"])), PEER))
    return [
        at_least(
            f"{row['model']} through Triton: Python backend with {row['engine']} over {PREPARED}",
            row["over_brisk"],
            limit,
        )
        for row, limit in limits
    ]
