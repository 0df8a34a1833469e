"""Latency and agreement of a model with its caches, compared with alternatives.

These are a smaller model, an int8 one (GATI, Fig. 6), or thresholds on the softmax. Then whether
audits notice an exit that has become worse.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from brisk.exits.adaptation.features import gather, look_at
from brisk.exits.base_model import BaseModel, load_graph
from brisk.exits.cascade import Cascade, Level
from brisk.exits.exploration.settings import STRICTER_LEVELS
from brisk.exits.guarantee.audit import STATED_AUDITS, ExitAudit
from brisk.exits.guarantee.calibration import Promise
from brisk.exits.guarantee.proposals import calibrate
from brisk.exits.heads.exit_head import PlainHead
from brisk.exits.heads.exit_model import Judge
from brisk.exits.learning.exporting import export_head, network_of
from brisk.exits.learning.quantising import quiet, static_int8
from brisk.exits.model_graph import read_graph
from brisk_bench.engines.registry import open_session, session_options
from brisk_bench.exits.data import ACCURACY, ExitCase
from brisk_bench.exits.runs import (
    BARE,
    ExitBench,
    ExitSide,
    Scoring,
    Version,
    load_for,
    plot_sides,
    scoring,
    side_rows,
)
from brisk_bench.harness.report import Check, Report, check_limit, check_tail_ratio

SPEED_UPS = {0.97: 1.95, 0.99: 1.41}
"""GATI's speed-ups by accuracy for ResNet-50 on CIFAR-10 (7.1.1, 7.1.2), expected of networks of
that depth."""

TAIL = 1.02
BATCHES = (1, 2, 8)

INT8_PEER = "int8, by ONNX Runtime"


def measure_latency(
    report: Report,
    case: ExitCase,
    cascade: Cascade,
    alone: Mapping[str, Cascade],
    bench: ExitBench,
    quick: bool,
    plots: Path | None,
) -> None:
    """Measure latency and agreement of all sides, on inputs that took no part in training."""
    base = load_for(case.model, cascade)
    versions: dict[str, Version | Scoring] = {
        _side(level.accuracy): Version(cascade, cascade.synchronous, level.accuracy)
        for level in cascade.levels
    }
    for accuracy in STRICTER_LEVELS:
        if _side(accuracy) not in versions:
            report.notes.append(
                f"{case.name}: {accuracy * 100:g} % is not promised: not proved with "
                f"{cascade.confidence:.0%} confidence on {cascade.levels[0].count.inputs} "
                "held-out inputs by caches that are on time"
            )
    way = "in a lane" if cascade.synchronous else "in the model's thread"
    versions[f"look-ups {way}"] = Version(cascade, not cascade.synchronous)
    for family, own in alone.items():
        versions |= {
            f"{family}, {level.accuracy * 100:g}%": Version(own, own.synchronous, level.accuracy)
            for level in own.levels
            if level.accuracy in SPEED_UPS
        }
    softmax = softmax_cascade(base, cascade, case)
    if softmax is not None:
        versions["softmax thresholds"] = Version(softmax, cascade.synchronous)
    for batch in BATCHES:
        batch_versions = {**versions, **alternatives(case)} if batch == 1 else versions
        sides = bench.measure(batch_versions, case.evaluation, batch, quick)
        report.rows += side_rows(case.name, batch, sides)
        if batch == 1:
            report.checks += _latency_checks(case, sides)
            report.checks += _family_checks(case, list(alone), sides)
            report.checks.append(_audit_check(case.name, sides))
            if plots is not None:
                report.notes.append(f"plot: {plot_sides(case.name, sides, plots)}")


def _side(accuracy: float) -> str:
    """Return the name of the side whose caches promise this accuracy."""
    return f"caches, {accuracy * 100:g}%"


def _latency_checks(case: ExitCase, sides: dict[str, ExitSide]) -> list[Check]:
    base, checks = sides[BARE], []
    for accuracy, speed_up in SPEED_UPS.items():
        side = sides.get(_side(accuracy))
        if side is None:
            continue
        label = f"{case.name}, {accuracy:.0%}"
        tail_name = f"{label}: p99 over the bare model's"
        checks += [
            check_limit(f"{label}: agreement", side.agreement, ">=", accuracy),
            check_limit(f"{label}: mean speed-up", base.mean_s / side.mean_s, ">=", speed_up),
            check_tail_ratio(tail_name, side.times_s, base.times_s, 0.99, TAIL),
        ]
    return checks


def _family_checks(
    case: ExitCase, families: Sequence[str], sides: Mapping[str, ExitSide]
) -> list[Check]:
    """Check all ways together against each alone at the same promise.

    Also against int8, if that keeps the promise.
    """
    checks = []
    for accuracy in SPEED_UPS:
        side = sides.get(_side(accuracy))
        others = {name: sides.get(f"{name}, {accuracy * 100:g}%") for name in families}
        whole = sides.get(INT8_PEER)
        others[INT8_PEER] = whole if whole and whole.agreement >= accuracy else None
        for name, other in others.items():
            if side is not None and other is not None:
                text = f"{case.name}, {accuracy:.0%}: mean of {name} over that of all ways"
                checks.append(check_limit(text, other.mean_s / side.mean_s, ">=", 1.0))
    return checks


def _audit_check(label: str, sides: dict[str, ExitSide]) -> Check:
    early = sides[_side(ACCURACY)].agreed_early
    audits = audits_until_off(early, ACCURACY, STATED_AUDITS) if early else None
    return Check(
        f"{label}: audited answers until an exit that became 10 % worse is off",
        audits,
        f"<= {STATED_AUDITS}",
        audits is not None,
    )


CALIBRATED_ROWS = 200


def alternatives(case: ExitCase) -> dict[str, Scoring]:
    """Return the other models to measure, by name."""
    models: dict[str, Scoring] = {}
    if case.smaller is not None:
        models["a smaller model (14 layers)"] = scoring(load_graph(read_graph(case.smaller())))
    models[INT8_PEER] = _by_onnxruntime(_quantised(case))
    models["float32, by ONNX Runtime"] = _by_onnxruntime(case.model)
    return models


def _by_onnxruntime(model: Path) -> Scoring:
    session = open_session(model, session_options(1))
    output = session.get_outputs()[0].name
    return lambda inputs: np.asarray(session.run([output], dict(inputs))[0])


def _quantised(case: ExitCase) -> Path:
    """Return the model in static int8, by channel, calibrated on training inputs; made once."""
    target = case.folder / "int8-ranges.onnx"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        name, images = next(iter(case.training.inputs.items()))
        rows = [images[row : row + 1] for row in range(min(CALIBRATED_ROWS, len(images)))]
        with tempfile.TemporaryDirectory() as folder, quiet():
            model = onnx.load(str(case.model))
            onnx.save(static_int8(model, Path(folder), name, rows), target)
    return target


INJECTED = 0.1
"""Share of an exit's answers that are made wrong."""


def softmax_cascade(base: BaseModel, cascade: Cascade, case: ExitCase) -> Cascade | None:
    """Return the same predictors with thresholds on the softmax, without gate and floor (GATI,
    Fig. 23); None if nothing is proved.

    They are tuned and calibrated on the rows that the cascade itself was.
    """
    own = tuple(exit_ for exit_ in cascade.exits if not exit_.reads_input)
    if not own:
        return None
    cascade = dataclasses.replace(cascade, exits=own)
    networks = [
        PlainHead(network_of(exit_).predictor, Judge.SOFTMAX).eval().requires_grad_(False)
        for exit_ in cascade.exits
    ]
    exits = tuple(
        dataclasses.replace(exit_, model=export_head(network, exit_.shape), judge=Judge.SOFTMAX)
        for exit_, network in zip(cascade.exits, networks, strict=True)
    )
    level = cascade.levels[0]
    saved_s = [exit_.saved_s for exit_ in exits]
    overhead_s = [exit_.overhead_s for exit_ in exits]
    division = case.division
    tune, held_out = (
        look_at(networks, gather(base, cascade, case.training.take(rows).inputs))
        for rows in (division.tune, division.calibrate)
    )
    calibration = calibrate(
        tune,
        held_out,
        Promise(level.accuracy, cascade.confidence),
        lambda count: count.saving_s(saved_s, overhead_s),
    )
    if calibration is None:
        return None
    levels = (Level(level.accuracy, calibration.thresholds, calibration.count),)
    return dataclasses.replace(cascade, exits=exits, levels=levels)


def audits_until_off(agreed: Sequence[bool], accuracy: float, most: int) -> int | None:
    """Count audited answers until the exit is off; None if it stays on.

    They are drawn from ``agreed``, and 10 % of them made wrong.
    """
    random = np.random.default_rng(0)
    audit = ExitAudit(accuracy)
    for number in range(1, most + 1):
        right = agreed[int(random.integers(len(agreed)))] and random.uniform() >= INJECTED
        if audit.note(bool(right)):
            return number
    return None
