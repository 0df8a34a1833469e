"""The paper's figures from the report's rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brisk_client.disb.preemption import EXECUTE
from brisk_client.report import Report

Row = dict[str, Any]

COLOURS = {
    "RT-only": "#7f7f7f",
    "padded": "#1f77b4",
    "preemptive": "#2ca02c",
    "deadline": "#17becf",
    "sequential": "#ff7f0e",
    "shared": "#d62728",
    "triton": "#9467bd",
}
"""Of policies and sides, the same in all figures, and their order in each."""


def plot_figures(report: Report, folder: Path) -> list[Path]:
    """One file for each figure whose rows are there: 11, 12, 13, 15 and 16."""
    folder.mkdir(parents=True, exist_ok=True)
    workloads = [row for row in report.rows if "workload" in row and "mean_ratio" in row]
    by_figure = {
        number: [row for row in report.rows if row.get("figure") == number]
        for number in ("12", "13", "15", "16")
    }
    restored = [row for row in by_figure["15"] if "restore_ms" in row]
    for number in ("12", "13"):  # without Triton's own sides, whose first layers nobody sees
        by_figure[number] = [row for row in by_figure[number] if row["part"] == EXECUTE]
    drawn = [
        _workloads(workloads, folder) if workloads else None,
        _preemption(by_figure["12"], folder) if by_figure["12"] else None,
        _layers(by_figure["13"], folder) if by_figure["13"] else None,
        _restoring(restored, folder) if restored else None,
        _pairs(by_figure["16"], folder) if by_figure["16"] else None,
    ]
    return [file for file in drawn if file is not None]


def _workloads(rows: Sequence[Row], folder: Path) -> Path:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(3, 1, figsize=(8, 9), sharex=True, layout="constrained")
    values = (
        ("mean_ms", "real-time latency, mean, ms"),
        ("p99_ms", "real-time latency, p99, ms"),
        ("per_s", "answers a second, all classes"),
    )
    for axes, (value, label) in zip(panels, values, strict=True):
        _bars(axes, rows, ("workload", "side"), value)
        axes.set_ylabel(label)
        if value != "per_s":
            _logarithmic(axes)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle("DISB's workloads (REEF, figure 11)")
    return _save(figure, "11-workloads", folder)


def _preemption(rows: Sequence[Row], folder: Path) -> Path:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
    for axes, share in zip(panels, ("p50", "p99"), strict=True):
        _bars(axes, rows, ("best_effort", "policy"), f"{share}_us")
        alone_us = rows[0][f"alone_{share}_us"]
        if not isinstance(alone_us, str):
            axes.axhline(alone_us, color="black", linestyle=":", label="alone")
        _logarithmic(axes)
        axes.set_title(share)
        axes.set_xlabel("best-effort network")
    panels[0].set_ylabel("from execute to the first layer, µs")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle("Preemption latency (REEF, figure 12)")
    return _save(figure, "12-preemption", folder)


def _layers(rows: Sequence[Row], folder: Path) -> Path:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for policy in _ordered(rows, "policy"):
        own = [row for row in rows if row["policy"] == policy]
        for share, style in (("p50", "-"), ("p99", "--")):
            told = [row for row in own if not isinstance(row[f"{share}_us"], str)]
            axes.plot(
                [row["layer_ms"] for row in told],
                [row[f"{share}_us"] for row in told],
                style,
                marker="o",
                color=COLOURS.get(policy),
                label=f"{policy}, {share}",
            )
    lengths = [row["layer_ms"] for row in rows]
    axes.set_xscale("log")
    _logarithmic(axes)
    axes.set_xticks(lengths, [f"{length:g}" for length in lengths])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("time of a best-effort layer, ms")
    axes.set_ylabel("from execute to the first layer, µs")
    axes.set_title("Preemption latency and the length of layers (REEF, figure 13)")
    figure.legend(loc="outside right upper")
    return _save(figure, "13-layers", folder)


def _restoring(rows: Sequence[Row], folder: Path) -> Path:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    _bars(axes, rows, ("best_effort", "policy"), "restore_ms")
    axes.set_ylabel("longer than both runs together, ms")
    axes.set_xlabel("best-effort network")
    axes.set_title("Restoring an interrupted run (REEF, figure 15b)")
    figure.legend(loc="outside right upper")
    return _save(figure, "15-restoring", folder)


def _pairs(rows: Sequence[Row], folder: Path) -> Path:
    """A row of two tables for each policy: real-time networks down, best-effort ones across."""
    from matplotlib import pyplot

    policies = _ordered(rows, "policy")
    size = (9, 4.2 * len(policies))
    figure, grid = pyplot.subplots(
        len(policies), 2, figsize=size, layout="constrained", squeeze=False
    )
    networks = list(dict.fromkeys(row["realtime"] for row in rows))
    values = (
        ("slowdown", "real-time time / alone", "Reds", (1.0, 3.0)),
        ("best_effort_share", "best-effort work / alone", "Greens", (0.0, 1.0)),
    )
    for policy, panels in zip(policies, grid, strict=True):
        found = {(r["realtime"], r["best_effort"]): r for r in rows if r["policy"] == policy}
        for axes, (value, label, colours, (low, high)) in zip(panels, values, strict=True):
            table = [[found[one, other][value] for other in networks] for one in networks]
            axes.imshow(table, cmap=colours, vmin=low, vmax=high)
            for row, line in enumerate(table):
                for column, each in enumerate(line):
                    is_dark = each > (low + high) / 2
                    colour = "white" if is_dark else "black"
                    axes.text(column, row, f"{each:.2f}", ha="center", va="center", color=colour)
            axes.set_xticks(range(len(networks)), networks, rotation=30)
            axes.set_yticks(range(len(networks)), networks)
            axes.set_title(f"{policy}: {label}")
            axes.set_ylabel("real-time")
            axes.set_xlabel("best-effort")
    figure.suptitle("Pairs that never rest (REEF, figure 16)")
    return _save(figure, "16-pairs", folder)


def _bars(axes: Any, rows: Sequence[Row], by: tuple[str, str], value: str) -> None:
    """A group of bars for each value of the first column ``by``, a colour for the second's.

    No bar where a row tells why it has no value.
    """
    group, colour = by
    groups = list(dict.fromkeys(row[group] for row in rows))
    names = _ordered(rows, colour)
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        own = [row for row in rows if row[colour] == name and not isinstance(row[value], str)]
        places = [groups.index(row[group]) + (number + 0.5) * width - 0.4 for row in own]
        heights = [row[value] for row in own]
        axes.bar(places, heights, width, label=name, color=COLOURS.get(name))
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _logarithmic(axes: Any) -> None:
    """Upwards, with plain numbers at 1, 2 and 5 of each power of ten, where anything is drawn."""
    from matplotlib import ticker

    if not axes.has_data():
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.grid(axis="y", alpha=0.3)


def _ordered(rows: Sequence[Row], column: str) -> list[str]:
    """The names in a column, in the order of COLOURS."""
    names = {row[column] for row in rows}
    return [name for name in COLOURS if name in names] + sorted(names - set(COLOURS))


def _save(figure: Any, name: str, folder: Path) -> Path:
    from matplotlib import pyplot

    file = folder / f"preempt-{name}.png"
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
    return file
