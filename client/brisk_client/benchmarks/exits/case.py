"""One model of `brisk bench exits`: all its sides measured, and what is expected of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brisk.exits.cascade import Cascade
from brisk.exits.guarantee.audit import STATED_AUDITS
from brisk_client.benchmarks.exits.alternatives import (
    alternatives,
    audits_until_off,
    load_for,
    softmax_cascade,
)
from brisk_client.benchmarks.exits.data import ExitCase
from brisk_client.benchmarks.exits.runs import (
    BARE,
    ExitBench,
    ExitSide,
    Other,
    Version,
    plot_sides,
)
from brisk_client.benchmarks.exits.streams import (
    ADAPTIVE,
    STATIC,
    Interval,
    StreamRow,
    follow,
    mean_speed_up,
    zipf_intervals,
)
from brisk_client.benchmarks.exits.video import READINGS, video_intervals
from brisk_client.report import Check, Report, check_limit, check_tail_ratio

ACCURACY = 0.97
SPEED_UPS = {0.97: 1.95, 0.99: 1.41}
"""GATI's for ResNet-50 on CIFAR-10 (7.1.1, 7.1.2); expected of nets of that depth."""

STREAM_SPEED_UP = 3.2
TAIL = 1.02
BATCHES = (1, 2, 8)
ALPHAS = (1.5, 3.0)
"""Skews of Zipf streams (GATI, 7.2.2)."""


def measure_latency(
    report: Report,
    case: ExitCase,
    cascade: Cascade,
    bench: ExitBench,
    quick: bool,
    plots: Path | None,
) -> None:
    """Latency and agreement of all sides, on inputs that took no part in training."""
    base = load_for(case.model, cascade)
    versions: dict[str, Version | Other] = {
        f"caches, {ACCURACY:.0%}": Version(cascade, cascade.synchronous)
    }
    if cascade.level(0.99) is not None:
        versions["caches, 99%"] = Version(cascade, cascade.synchronous, 0.99)
    else:
        report.notes.append(
            f"{case.name}: 99 % cannot be proved with {cascade.confidence:.0%} confidence on "
            f"{cascade.levels[0].count.inputs} held-out inputs"
        )
    way = "in a lane" if cascade.synchronous else "in the model's thread"
    versions[f"look-ups {way}"] = Version(cascade, not cascade.synchronous)
    softmax = softmax_cascade(base, cascade, case)
    if softmax is not None:
        versions["softmax thresholds"] = Version(softmax, cascade.synchronous)
    others: dict[str, Version | Other] = {**alternatives(case)}
    for batch in BATCHES:
        asked = {**versions, **others} if batch == 1 else versions
        sides = bench.measure(asked, case.evaluation, batch, quick)
        for name, side in sides.items():
            report.rows.append(_row(case.name, name, batch, side, sides[BARE]))
        if batch == 1:
            report.checks += _latency_checks(case, sides, sides[BARE])
            report.checks.append(_audit_check(case.name, sides))
            if plots is not None:
                report.notes.append(f"plot: {plot_sides(case.name, sides, plots)}")


def _row(label: str, name: str, batch: int, side: ExitSide, base: ExitSide) -> dict[str, Any]:
    place = {"model": label, "side": name, "batch": batch}
    return {**place, **side.speed_columns(base), **side.answer_columns()}


def _latency_checks(case: ExitCase, sides: dict[str, ExitSide], base: ExitSide) -> list[Check]:
    checks = []
    for accuracy, wanted in SPEED_UPS.items():
        side = sides.get(f"caches, {accuracy:.0%}")
        if side is None:
            continue
        label = f"{case.name}, {accuracy:.0%}"
        tail_name = f"{label}: p99 over the bare model's"
        checks += [
            check_limit(f"{label}: agreement", side.agreement, ">=", accuracy),
            check_limit(f"{label}: mean speed-up", base.mean_s / side.mean_s, ">=", wanted),
            check_tail_ratio(tail_name, side.times_s, base.times_s, 0.99, TAIL),
        ]
    return checks


def _audit_check(label: str, sides: dict[str, ExitSide]) -> Check:
    early = sides[f"caches, {ACCURACY:.0%}"].agreed_early
    audits = audits_until_off(early, ACCURACY, STATED_AUDITS) if early else None
    return Check(
        f"{label}: audited answers until an exit that became 10 % worse is off",
        audits,
        f"<= {STATED_AUDITS}",
        audits is not None,
    )


def measure_streams(
    report: Report, case: ExitCase, cascade: Cascade, bench: ExitBench, video: Path | None
) -> None:
    """Static and adapting caches on Zipf streams, where the case has images for them, and on a
    video."""
    base = load_for(case.model, cascade)
    streams: list[Iterator[Interval]] = []
    if case.streamed is not None:
        streams += [zipf_intervals(case.streamed, alpha) for alpha in ALPHAS]
    else:
        report.notes.append(
            f"{case.name}: no Zipf streams, there are too few images that neither the network nor "
            "its caches were trained on"
        )
    if video is not None and case.is_of_colour:
        streams += [video_intervals(video, one) for one in READINGS]
    for intervals in streams:
        rows = []
        for row in follow(bench, base, cascade, case, intervals):
            rows.append(row)
            label = f"{row.stream}, interval {row.number + 1}"
            for name, side in row.sides.items():
                report.rows.append(_row(f"{case.name}, {label}", name, 1, side, row.sides[BARE]))
            report.notes.append(
                f"{label}: {row.outcome}; {row.retraining_s * 1e3:.0f} ms for a cache; "
                f"{row.where()}"
            )
        if rows:
            report.checks += _stream_checks(rows)
        else:
            report.notes.append(f"'{video}' is shorter than an interval and its gap: left out")


def _stream_checks(rows: list[StreamRow]) -> list[Check]:
    slowest_s = max(row.retraining_s for row in rows)
    static, adaptive = mean_speed_up(rows, STATIC), mean_speed_up(rows, ADAPTIVE)
    agreement = min(row.sides[ADAPTIVE].agreement for row in rows)
    name = rows[0].stream
    return [
        Check(f"{name}: retraining of a cache, s", slowest_s, "<= 0.5", 0 < slowest_s <= 0.5),
        check_limit(f"{name}: mean speed-up with adaptation", adaptive, ">=", STREAM_SPEED_UP),
        check_limit(f"{name}: adaptive over static caches", adaptive / static, ">", 1),
        check_limit(
            f"{name}: least agreement of an interval with adaptation", agreement, ">=", ACCURACY
        ),
    ]
