"""A run as pictures: the distribution of latencies, and latencies over time."""

from __future__ import annotations

import math
from pathlib import Path

from brisk_client.workload.results.histogram import RELATIVE_WIDTH
from brisk_client.workload.results.outcome import RunOutcome


def plot_run(name: str, outcome: RunOutcome, folder: Path) -> list[Path]:
    """One file: for each task, the share of requests that took longer than so much."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for task in outcome.tasks:
        if not task.latency.count:
            continue
        times_ms, longer = [], []
        seen = 0
        for bucket in sorted(task.latency.counts):
            seen += task.latency.counts[bucket]
            times_ms.append(math.exp((bucket + 0.5) * math.log1p(RELATIVE_WIDTH)) / 1e6)
            longer.append(1 - seen / task.latency.count)
        axes.step(times_ms, longer, where="post", label=task.task)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("latency, ms")
    axes.set_ylabel("share of requests that took longer")
    axes.set_title(name)
    axes.legend(fontsize="small")
    file = folder / f"{name}-latency.png"
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
    return [file]
