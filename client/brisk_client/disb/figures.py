"""The paper's figures from the report's rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brisk_client.report import Report


def plot_figures(report: Report, folder: Path) -> list[Path]:
    """One file for each figure whose rows are there: 11, 12, 13, 15 and 16."""
    folder.mkdir(parents=True, exist_ok=True)
    workloads = [row for row in report.rows if "workload" in row and "mean_ms" in row]
    by_figure = {
        number: [row for row in report.rows if row.get("figure") == number]
        for number in ("12", "13", "16")
    }
    restored = [row for row in by_figure["12"] if "restore_ms" in row]
    pairs = [
        {**row, "pair": f"{row['realtime']} / {row['best_effort']}"} for row in by_figure["16"]
    ]
    drawn = [
        _bars(workloads, "workload", "side", "mean_ms", "11a, real-time latency", folder),
        _bars(workloads, "workload", "side", "p99_ms", "11a, real-time latency, p99", folder),
        _bars(workloads, "workload", "side", "per_s", "11b, overall answers a second", folder),
        _bars(
            by_figure["12"], "best_effort", "policy", "preemption_p50_us", "12, preemption", folder
        ),
        _line(by_figure["13"], folder),
        _bars(restored, "best_effort", "policy", "restore_ms", "15, restore overhead", folder),
        _bars(pairs, "pair", "policy", "slowdown", "16, real-time latency over alone", folder),
        _bars(pairs, "pair", "policy", "best_effort_share", "16, best-effort share", folder),
    ]
    return [file for file in drawn if file is not None]


def _bars(
    rows: Sequence[dict[str, Any]], group: str, colour: str, value: str, title: str, folder: Path
) -> Path | None:
    if not rows:
        return None
    from matplotlib import pyplot

    groups = list(dict.fromkeys(row[group] for row in rows))
    colours = list(dict.fromkeys(row[colour] for row in rows))
    width = 0.8 / len(colours)
    figure, axes = pyplot.subplots(figsize=(max(6, 0.7 * len(groups)), 4), layout="constrained")
    for number, name in enumerate(colours):
        found = {row[group]: row[value] for row in rows if row[colour] == name}
        places = [index + (number + 0.5) * width - 0.4 for index in range(len(groups))]
        axes.bar(places, [found.get(each, 0.0) for each in groups], width, label=name)
    axes.set_xticks(range(len(groups)), groups, rotation=90 if len(groups) > 8 else 0)
    axes.set_ylabel(value.replace("_", " "))
    axes.set_title(f"Figure {title}")
    figure.legend(fontsize="small", loc="outside right upper")
    return _save(figure, title, folder)


def _line(rows: Sequence[dict[str, Any]], folder: Path) -> Path | None:
    if not rows:
        return None
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    for policy in policies:
        own = [row for row in rows if row["policy"] == policy]
        times = [row["preemption_p50_us"] for row in own]
        axes.plot([row["layer_ms"] for row in own], times, marker="o", label=policy)
    axes.set_xscale("log")
    if len(policies) > 1:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("time of a best-effort layer, ms")
    axes.set_ylabel("preemption latency p50, us")
    axes.set_title("Figure 13, preemption latency and layers' length")
    figure.legend(fontsize="small", loc="outside right upper")
    return _save(figure, "13, preemption", folder)


def _save(figure: Any, title: str, folder: Path) -> Path:
    from matplotlib import pyplot

    name = title.replace(",", "").replace(" ", "-")
    file = folder / f"preempt-figure-{name}.png"
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
    return file
