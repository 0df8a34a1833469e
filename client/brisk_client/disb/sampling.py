"""One run of one workload on one side, and what several of them say together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brisk_client.disb.plan import RT_ONLY
from brisk_client.disb.served import REALTIME
from brisk_client.disb.sides import Side
from brisk_client.tails import curve, percentile_columns, tail_or_shortage, tail_ratio
from brisk_client.workload.description import Workload
from brisk_client.workload.runner import run_workload


@dataclass(frozen=True, slots=True)
class WorkloadSample:
    """One run. ``latency_ms``: of the answered real-time requests, from when they were due.

    ``per_s``: answers of all classes. ``lag_ms``, ``generator_share``: how late the load
    generator of the real-time clients was, and the share of one core that all generators used.
    ``busy``, ``stolen``: shares of all processors' time with any process on them, and taken by
    the hypervisor: where others worked, a run is not slow by itself.
    """

    latency_ms: Sequence[float]
    per_s: float
    dropped: int
    failed: int
    lag_ms: Sequence[float]
    generator_share: float
    busy: float
    stolen: float


def sample(side: Side, workload: Workload, warm_ups: int) -> WorkloadSample:
    """Run the workload on the side. Raises WorkloadFailedError."""
    import psutil

    psutil.cpu_times_percent()  # the next call is of the time since this one
    outcome = run_workload(side.fit(workload), side.server.grpc, warm_ups=warm_ups)
    machine = psutil.cpu_times_percent()
    realtime = outcome.of_class(REALTIME)
    processor_s = sum(generator.processor_s for generator in outcome.generators)
    return WorkloadSample(
        latency_ms=[latency_ns / 1e6 for latency_ns in realtime.latency_ns],
        per_s=outcome.per_s(),
        dropped=realtime.dropped,
        failed=sum(task.failed for task in outcome.tasks),
        lag_ms=[lag_ns / 1e6 for lag_ns in realtime.lag_ns],
        generator_share=processor_s / outcome.duration_s,
        busy=(100 - machine.idle - machine.iowait - machine.steal) / 100,
        stolen=machine.steal / 100,
    )


def describe(found: WorkloadSample) -> str:
    """One line for the terminal."""
    columns = {**short_row(found), "busy": found.busy, "stolen": found.stolen}
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in columns.items()
    )


def summarise_side(samples: Mapping[str, Sequence[WorkloadSample]], name: str) -> dict[str, Any]:
    """Columns of side ``name``: its times over all rounds, and ratios to RT-only.

    Percentiles are of the answers of all rounds together, and so are their ratios. The ratio of
    means and that of paces are medians over rounds of the side's value over RT-only's in the same
    round; ``mean_ratio_range`` is the least and the greatest of them. ``quantiles_ms``: the
    distribution of the real-time latency, at the shares of ``tails.CURVE``.
    """
    own, base = samples[name], samples[RT_ONLY]
    means = [
        statistics.fmean(each.latency_ms) / statistics.fmean(alone.latency_ms)
        for each, alone in zip(own, base, strict=True)
        if each.latency_ms and alone.latency_ms
    ]
    row = _latency(own)
    if means:
        row |= {
            "mean_ratio": statistics.median(means),
            "mean_ratio_range": [round(min(means), 3), round(max(means), 3)],
            "p99_ratio": tail_ratio(_pooled_ms(own), _pooled_ms(base), 0.99),
        }
    lag_ms = [value for each in own for value in each.lag_ms]
    return row | {
        "per_s": statistics.median(each.per_s for each in own),
        "round_per_s": [each.per_s for each in own],
        "throughput_ratio": statistics.median(
            each.per_s / alone.per_s for each, alone in zip(own, base, strict=True)
        ),
        "dropped": sum(each.dropped for each in own),
        "failed": sum(each.failed for each in own),
        "lag_p99_ms": tail_or_shortage(lag_ms, 0.99),
        "generator_share": statistics.median(each.generator_share for each in own),
        "round_busy": [round(each.busy, 3) for each in own],
        "round_stolen": [round(each.stolen, 3) for each in own],
        "quantiles_ms": curve(_pooled_ms(own)),
    }


def short_row(taken: WorkloadSample) -> dict[str, Any]:
    """Columns of a short run that only decides whether its side is worth a long one."""
    names = ("per_s", "dropped", "failed")
    return {**_latency([taken]), **{name: getattr(taken, name) for name in names}}


def _pooled_ms(samples: Sequence[WorkloadSample]) -> list[float]:
    return [value for each in samples for value in each.latency_ms]


def _latency(own: Sequence[WorkloadSample]) -> dict[str, Any]:
    pooled = _pooled_ms(own)
    row: dict[str, Any] = {"realtime_answers": len(pooled)}
    if pooled:
        row["mean_ms"] = statistics.fmean(pooled)
        row |= percentile_columns(pooled, ("p50", "p90", "p99", "p999"), "ms")
    return row


def median_ratio(own: Sequence[float], base: Sequence[float]) -> float | None:
    """The median over rounds of a side's value over another's; None where the other has none."""
    ratios = [one / other for one, other in zip(own, base, strict=True) if other]
    return statistics.median(ratios) if ratios else None
