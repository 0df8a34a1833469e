"""Rows made from samples, and the checks that the rows of any run have to pass."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brisk_bench.cold.measure import EngineSamples
from brisk_bench.engines.agreement import agree, load_answers
from brisk_bench.engines.registry import BARE_PEERS, BASE, BRISK, PREPARED_PEERS, TORCH, UNPREPARED
from brisk_bench.harness.report import REASON, Check, check_limit
from brisk_bench.harness.sampling import median_ratio, summarise

Rows = Sequence[Mapping[str, Any]]

Measured = Mapping[str, EngineSamples]
"""Samples of one model by engine."""

OVER_BARE, OVER_PREPARED = "over_bare_peer", "over_prepared_peer"
"""Keys of a row: the time of ONNX Runtime's faster start from the bare file over the row's, and
that of its faster prepared start."""

UNMEASURED, NO_ENGINE = "unmeasured", "none"
"""The part of rows that hold a reason instead of times, and their engine where the model is the
reason."""

INFERENCES = ("first", "second", "third")

WARMTH = {
    BRISK: {"first": 1.25, "second": 1.05, "third": 1.05},
    UNPREPARED: {"second": 1.3, "third": 1.05},
}
"""The most that an inference after the load may take over warm ones, by engine."""

NEARNESS, SPEEDUP = 0.8, 3.0
"""The least of ONNX Runtime's time at its defaults over ours, geometric mean of models. Prepared
starts: that share of the speed-up of a start as fast as a warm inference. Others: that many times.
No model may start later than with ONNX Runtime."""

PEERS = {BRISK: (OVER_PREPARED, "prepared"), UNPREPARED: (OVER_BARE, "from the bare file")}
"""The column, and its name in checks, of ONNX Runtime's time over ours. Each model's and the
geometric mean are at least PEER; the faster of two ways of ONNX Runtime's own counts."""

PEER = 1.0

PREPARED_MODEL, PREPARE_S = "resnet50", 10.0

SERVED = {"torch": 8.0, "onnxruntime": 3.0}
"""The least time of a Python-backend model through Triton over Brisk's, by engine."""

LATER_OVER_PEER = {
    BRISK: {1: 0.18, 2: 0.25, 5: 0.38, 10: 0.52, 20: 0.68},
    UNPREPARED: {1: 0.40, 2: 0.40, 5: 0.52, 10: 0.60, 20: 0.70},
}
"""The most of the time from the load call to that answer of a closed loop through Triton, over the
Python backend's with ONNX Runtime, in the median over models."""


def speedup(measured: Measured, engine: str, base: str) -> float:
    """Return ``base``'s first answer over ``engine``'s, the median over rounds."""
    pairs = zip(measured[base].samples, measured[engine].samples, strict=False)
    return median_ratio([(theirs.first_s, ours.first_s) for theirs, ours in pairs])


def rows_of(part: str, model: str, measured: Measured) -> list[dict[str, Any]]:
    """Return one row for each engine, times in ms."""
    return [_row(part, model, measured, name) for name in measured]


def _row(part: str, model: str, measured: Measured, name: str) -> dict[str, Any]:
    result = measured[name]
    first = summarise([sample.first_s for sample in result.samples])
    row: dict[str, Any] = {
        "part": part,
        "model": model,
        "batch": 1,
        "engine": name,
        "first_ms": first.median * 1e3,
        "spread_ms": first.spread * 1e3,
        "processor_ms": statistics.median(s.processor_s for s in result.samples) * 1e3,
    }
    warm_s = [statistics.median(sample.warm_s) for sample in result.samples]
    inferences = zip(*([s.first_s, *s.following_s] for s in result.samples), strict=True)
    times = dict(zip(INFERENCES, inferences, strict=False))
    for inference in ("second", "third"):
        row[f"{inference}_ms"] = statistics.median(times[inference]) * 1e3
    row["warm_ms"] = statistics.median(warm_s) * 1e3
    for inference, taken_s in times.items():
        over = median_ratio(list(zip(taken_s, warm_s, strict=True)))
        row[f"{inference}_over_warm"] = over
    row["samples"] = len(result.samples)
    if BASE in measured:
        row["speedup"] = speedup(measured, name, BASE)
    for key, peers in ((OVER_BARE, BARE_PEERS), (OVER_PREPARED, PREPARED_PEERS)):
        candidates = [peer for peer in peers if peer in measured]
        if candidates:
            soonest = min(candidates, key=lambda peer: _median_first_s(measured[peer]))
            row[key] = speedup(measured, name, soonest)
    if result.prepare_s is not None:
        row["prepare_s"] = round(result.prepare_s, 2)
    if result.disk_s:
        row["read_ms"] = statistics.median(result.disk_s) * 1e3
        row["first_over_read"] = first.median / statistics.median(result.disk_s)
    return row


def _median_first_s(taken: EngineSamples) -> float:
    return statistics.median(sample.first_s for sample in taken.samples)


def agreements(folder: Path, engines: Iterable[str]) -> dict[str, bool]:
    """Return whether each first answer, ``folder``/ENGINE.npz, agrees with ONNX Runtime's.

    Empty if ONNX Runtime's answer is missing. Torch is left out: it has weights of its own.
    """
    base = folder / f"{BASE}.npz"
    if not base.exists():
        return {}
    expected = load_answers(base)
    return {
        engine: agree(load_answers(folder / f"{engine}.npz"), expected, scaled=True)
        for engine in engines
        if engine != TORCH
    }


def all_checks(rows: Rows) -> list[Check]:
    """Return every check that the rows suffice for."""
    hot = [row for row in rows if row["part"] == "process"]
    own = (check for row in rows for check in _of_row(row))
    return [*_agreement(hot), *own, *_speedups(hot), *_peers(hot), *_served(rows)]


def _of_row(row: Mapping[str, Any]) -> Iterator[Check]:
    """Yield the checks of one of Brisk's rows, or of a model that no engine could be asked about.

    The disk bounds a start: its other work is hidden behind the reading, or follows it.
    """
    model, engine, part = row["model"], row["engine"], row["part"]
    if part == UNMEASURED and engine in (BRISK, UNPREPARED, NO_ENGINE):
        yield Check(f"{model}: {engine} answers", row[REASON], "an answer", False)
    if part == "process":
        for name, limit in WARMTH.get(engine, {}).items():
            if (key := f"{name}_over_warm") in row:
                text = f"{model}: {engine}, {name} inference over warm"
                yield check_limit(text, row[key], "<=", limit, 3)
        if engine == BRISK and model == PREPARED_MODEL and "prepare_s" in row:
            yield check_limit(f"{model}: seconds to prepare", row["prepare_s"], "<=", PREPARE_S)
    if engine == BRISK and part == "disk":
        text = f"{model}: {BRISK} from the disk over reading and then a hot start"
        over = row["first_ms"] / (row["read_ms"] + row["hot_ms"])
        yield check_limit(text, over, "<=", 1.0, 3)


def _by_model(rows: Rows, engine: str, key: str) -> dict[str, float]:
    """Return an engine's values of ``key`` by model, of the rows that have it."""
    return {row["model"]: row[key] for row in rows if row["engine"] == engine and key in row}


def _agreement(hot: Rows) -> list[Check]:
    """Check that each engine's first answer is ONNX Runtime's, a check for each model.

    Only engines that compute with the same weights take part.
    """
    wrong_engines: dict[str, list[str]] = {}
    for row in hot:
        if "agrees" in row:
            wrong = wrong_engines.setdefault(row["model"], [])
            wrong += [] if row["agrees"] else [row["engine"]]
    return [
        Check(
            f"{model}, batch 1: first answers agree with {BASE}'s",
            f"not those of {', '.join(wrong)}" if wrong else "all",
            "all",
            not wrong,
        )
        for model, wrong in wrong_engines.items()
    ]


def _speedups(hot: Rows) -> list[Check]:
    checks = []
    for engine in (BRISK, UNPREPARED):
        ratios = _by_model(hot, engine, "speedup")
        limit = SPEEDUP
        if engine == BRISK and ratios:
            over_warm = _by_model(hot, engine, "first_over_warm")
            warm = (ratios[model] * over_warm[model] for model in ratios)
            limit = round(NEARNESS * statistics.geometric_mean(warm), 3)
        for model, over in ratios.items():
            text = f"{model}: {engine}, speed-up over {BASE}"
            checks.append(check_limit(text, over, ">=", PEER, 3))
        text = f"{len(ratios)} models: {engine}, geometric mean of speed-ups over {BASE}"
        checks += _mean(text, ratios, limit)
    return checks


def _peers(hot: Rows) -> list[Check]:
    checks = []
    for engine, (key, state) in PEERS.items():
        ratios = _by_model(hot, engine, key)
        for model, over in ratios.items():
            text = f"{model}: {engine} over {BASE} {state}"
            checks.append(check_limit(text, over, ">=", PEER, 3))
        text = f"{len(ratios)} models: {engine} over {BASE} {state}, geometric mean"
        checks += _mean(text, ratios, PEER)
    return checks


def _mean(text: str, found: Mapping[str, float], limit: float) -> list[Check]:
    """Check the geometric mean of several values; no check of fewer than two."""
    if len(found) < 2:
        return []
    return [check_limit(text, statistics.geometric_mean(found.values()), ">=", limit, 3)]


def _later(served: Rows) -> list[Check]:
    """Check the times to the first answer and to later ones, over Python with ONNX Runtime.

    Rows that were measured without later answers have no checks.
    """
    checks = []
    for engine, aims in LATER_OVER_PEER.items():
        for answer, aim in aims.items():
            column = "first_ms" if answer == 1 else f"answer_{answer}_ms"
            rows = [row for row in served if f"answer_{max(aims)}_ms" in row]
            ours, theirs = (
                {row["model"]: float(row[column]) for row in rows if row["engine"] == name}
                for name in (engine, BASE)
            )
            if ratios := [ours[model] / theirs[model] for model in ours if model in theirs]:
                text = f"through Triton: load to answer {answer}, {engine} over Python with {BASE}"
                checks.append(check_limit(text, statistics.median(ratios), "<=", aim, 3))
    return checks


def _served(rows: Rows) -> list[Check]:
    served = [row for row in rows if row["part"] == "served"]
    limits = [(row, SERVED[row["engine"]]) for row in served if row["engine"] in SERVED]
    for model in dict.fromkeys(row["model"] for row in served):
        peers = [
            row for row in served if row["model"] == model and row["engine"] in PREPARED_PEERS
        ]
        if peers:
            limits.append((min(peers, key=lambda row: float(row["over_brisk"])), PEER))
    soonest = [
        check_limit(
            f"{row['model']} through Triton: Python backend with {row['engine']} over {BRISK}",
            row["over_brisk"],
            ">=",
            limit,
            3,
        )
        for row, limit in limits
    ]
    return [*soonest, *_later(served)]
