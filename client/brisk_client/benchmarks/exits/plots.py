"""Plots of early exits: the distribution of latencies, and agreement against latency."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from brisk_client.benchmarks.exits.runs import ExitSide

TAILS = 1.3
"""The CDF ends there, in slowest 95th percentiles: single slow requests would squeeze the rest."""


def plot_sides(label: str, sides: Mapping[str, ExitSide], folder: Path) -> Path:
    """One file: left the CDF of latencies (GATI, Fig. 6a), right agreement against the mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for number, (name, side) in enumerate(sorted(sides.items(), key=lambda one: one[1].mean_s)):
        times_ms = np.sort(side.times_s) * 1e3
        left.plot(times_ms, np.arange(1, len(times_ms) + 1) / len(times_ms), label=name)
        point = (side.mean_s * 1e3, side.agreement * 100)
        right.scatter(*point)
        aside = (0, 6 if number % 2 else -12)
        right.annotate(name, point, xytext=aside, textcoords="offset points", ha="center", size=8)
    left.set_xlim(0, TAILS * max(side.quantile_s(0.95) for side in sides.values()) * 1e3)
    left.set_xlabel("latency, ms")
    left.set_ylabel("share of inputs")
    left.legend()
    right.set_xlim(0, 1.25 * max(side.mean_s for side in sides.values()) * 1e3)
    right.margins(y=0.15)
    right.set_xlabel("mean latency, ms")
    right.set_ylabel("agreement with the bare model, %")
    figure.suptitle(label)
    file = folder / f"exits-{label.replace(' ', '-').replace(',', '')}.png"
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
    return file
