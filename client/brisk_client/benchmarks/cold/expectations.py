"""What is expected of cold starts, as checks on a report's rows, whichever run they are of."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from brisk_client.benchmarks.cold.engines import BASE, PREPARED, PREPARED_PEERS, UNPREPARED
from brisk_client.benchmarks.cold.rows import OVER_BARE, OVER_PREPARED
from brisk_client.report import Check

Rows = Sequence[Mapping[str, Any]]

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
