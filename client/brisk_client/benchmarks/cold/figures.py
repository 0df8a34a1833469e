"""The papers' figures from a report's rows, each a PNG; one without its rows is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brisk_client.benchmarks.cold.breakdown import PHASES
from brisk_client.benchmarks.cold.drawing import Figure, Values, draw, draw_panels
from brisk_client.benchmarks.cold.expectations import geometric_mean
from brisk_client.benchmarks.cold.models import MODELS
from brisk_client.benchmarks.cold.registry import BASE, PREPARED, UNPREPARED
from brisk_client.report import Report

Rows = Sequence[Mapping[str, Any]]

BASELINE, NNV12, PASK, IDEAL = "brisk baseline", "brisk nnv12", "brisk pask", "brisk ideal"
PASK_I, PASK_R = "brisk pask_i", "brisk pask_r"
MEAN = "geometric\nmean"

_PHASE_NAMES = {
    "run": "running layers",
    "lookup": "looking for substitutes",
    "substitute": "making substitutes",
    "create": "making kernels",
    "transform": "laying out weights",
    "read": "reading and verifying",
    "parse": "parsing",
    "other": "other",
}


def draw_all(report: Report, folder: Path) -> list[Path]:
    """Write every figure that the rows suffice for."""
    folder.mkdir(parents=True, exist_ok=True)
    order = [model.name for model in MODELS]
    hot = [row for row in report.rows if row["part"] == "process" and row["batch"] == 1]
    hot.sort(key=lambda row: order.index(row["model"]) if row["model"] in order else len(order))
    first = Figure("engines", "First answer, page cache hot, batch 1", "ms", _of(hot, "first_ms"))
    found = [draw_panels(first, folder)] if hot else []
    figures = [*_of_pask(report, hot), *_of_nnv12(report, hot), *_of_places(report)]
    return found + [draw(each, folder) for each in figures if any(each.values.values())]


def _of_pask(report: Report, hot: Rows) -> list[Figure]:
    reuse = _part(report, "reuse")
    fig6 = (NNV12, PASK, UNPREPARED, PREPARED, IDEAL)
    return [
        Figure(
            "pask-6a",
            "First answer, speed-up over Baseline (PASK, Fig. 6a)",
            "times",
            _with_mean(_over(hot, BASELINE, fig6)),
            line=1.0,
        ),
        Figure(
            "pask-6b",
            "Share of the first answer's time in which layers ran (PASK, Fig. 6b)",
            "share",
            _of(_only(hot, (BASELINE, *fig6)), "utilisation"),
        ),
        *(
            Figure(
                f"pask-7-{name}",
                f"Where {title} first answer goes (PASK, Fig. 7)",
                "share of its time",
                _phases(report, engine),
                is_stacked=True,
            )
            for name, title, engine in (
                ("pask", "PaSK's", PASK),
                ("brisk", "Brisk's prepared", PREPARED),
            )
        ),
        Figure(
            "pask-8",
            "First answer, speed normalised to PaSK's (PASK, Fig. 8)",
            "times",
            _with_mean(_over(hot, PASK, (PASK_I, PASK_R, PASK))),
            line=1.0,
        ),
        Figure(
            "pask-9a",
            "Queries that found a substitute (PASK, Fig. 9a)",
            "share of queries",
            _of(_only(reuse, (PASK, PASK_R, UNPREPARED)), "hit_rate"),
        ),
        Figure(
            "pask-9b",
            "Solutions checked per query (PASK, Fig. 9b)",
            "look-ups",
            _of(_only(reuse, (PASK, PASK_R, UNPREPARED)), "lookups_per_query"),
        ),
        Figure(
            "pask-table-2",
            "First answer, speed-up over Baseline by batch size (PASK, Table II)",
            "times, geometric mean over models",
            _of(_part(report, "batches"), "over_baseline", lambda row: f"batch {row['batch']}"),
            line=1.0,
        ),
    ]


def _of_nnv12(report: Report, hot: Rows) -> list[Figure]:
    return [
        Figure(
            "nnv12-11",
            "First answer while other processes keep processors busy (NNV12, Fig. 11)",
            "ms",
            _of(
                _part(report, "load"),
                "first_ms",
                lambda row: f"{row['model']}\n{row['load']}",
            ),
        ),
        Figure(
            "nnv12-13",
            "First answer: kernel selection (K), kept weights (C), pipeline (P) (NNV12, Fig. 13)",
            "ms",
            _ablation(hot),
        ),
        Figure(
            "nnv12-14",
            "The first inferences of a process (NNV12, Fig. 14)",
            "ms",
            _inferences(hot, {PREPARED: "Brisk", BASE: "ORT"}),
        ),
    ]


def _of_places(report: Report) -> list[Figure]:
    return [
        Figure(
            "disk",
            "First answer from the disk over reading the same bytes",
            "times",
            _of(_part(report, "disk"), "first_over_read"),
            line=1.0,
        ),
        Figure(
            "served",
            "Through Triton: repository load call to first answer",
            "ms",
            _of(_part(report, "served"), "first_ms"),
        ),
    ]


def _part(report: Report, part: str) -> Rows:
    return [row for row in report.rows if row["part"] == part]


def _only(rows: Rows, engines: Sequence[str]) -> Rows:
    """Rows of these engines, in their order."""
    return [row for engine in engines for row in rows if row["engine"] == engine]


def _of(rows: Rows, key: str, group: Callable[[Mapping[str, Any]], str] | None = None) -> Values:
    """Values of ``key`` by engine, then by model (or ``group``); rows without one are left out."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.get(key) is not None:
            name = group(row) if group else str(row["model"])
            found.setdefault(str(row["engine"]), {})[name] = float(row[key])
    return found


def _over(rows: Rows, base: str, schemes: Sequence[str]) -> Values:
    """``base``'s first answer over each scheme's."""
    first = _of(rows, "first_ms")
    return {
        scheme: {
            model: first[base][model] / took_ms
            for model, took_ms in first[scheme].items()
            if model in first.get(base, {})
        }
        for scheme in schemes
        if scheme in first
    }


def _with_mean(values: Values) -> Values:
    """With a group more: the mean over the others, where there are several."""
    return {
        name: {**series, **({MEAN: geometric_mean(series.values())} if len(series) > 1 else {})}
        for name, series in values.items()
    }


def _phases(report: Report, engine: str) -> Values:
    rows = [row for row in _part(report, "breakdown") if row["engine"] == engine]
    return {_PHASE_NAMES[phase]: {str(row["model"]): row.get(phase, 0.0) for row in rows}
            for phase in PHASES}  # fmt: skip


def _ablation(hot: Rows) -> Values:
    first = _of(hot, "first_ms")
    named = {
        "none": BASELINE,
        "K": "brisk nnv12_k",
        "K+C": "brisk nnv12_kc",
        "K+C+P": NNV12,
        "warm": IDEAL,
    }
    return {label: first[engine] for label, engine in named.items() if engine in first}


def _inferences(hot: Rows, engines: Mapping[str, str]) -> Values:
    rows = [row for row in hot if row["engine"] in engines]
    models = list(dict.fromkeys(row["model"] for row in rows))
    rows.sort(key=lambda row: (models.index(row["model"]), str(row["engine"])))
    return {
        name: {f"{row['model']}\n{engines[row['engine']]}": row[f"{name}_ms"] for row in rows}
        for name in ("first", "second", "third", "warm")
    }
