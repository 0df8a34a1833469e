"""One run of one workload on one side, and what several of them say together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brisk_client.disb.served import REALTIME
from brisk_client.disb.sides import RT_ONLY, Side
from brisk_client.tails import quantile, tail_or_shortage, tail_ratio
from brisk_client.workload.description import Workload
from brisk_client.workload.runner import run_workload


@dataclass(frozen=True, slots=True)
class WorkloadSample:
    """One run. ``latency_ms``: of the answered real-time requests, from when they were due.

    ``per_s``: answers of all classes. ``lag_ms``, ``generator_share``: how late the load
    generator of the real-time clients was, and the share of one core that all generators used.
    ``machine``: what all processors did meanwhile, for whomever.
    """

    latency_ms: Sequence[float]
    per_s: float
    dropped: int
    failed: int
    lag_ms: Sequence[float]
    generator_share: float
    machine: MachineTime


def sample(side: Side, workload: Workload, warm_ups: int) -> WorkloadSample:
    """Run the workload on the side. Raises WorkloadFailedError."""
    ticks = read_ticks()
    outcome = run_workload(side.fit(workload), side.server.grpc, warm_ups=warm_ups)
    machine = between(ticks, read_ticks())
    realtime = outcome.of_class(REALTIME)
    processor_s = sum(generator.processor_s for generator in outcome.generators)
    return WorkloadSample(
        latency_ms=[latency_ns / 1e6 for latency_ns in realtime.latency_ns],
        per_s=outcome.per_s(),
        dropped=realtime.dropped,
        failed=sum(task.failed for task in outcome.tasks),
        lag_ms=[lag_ns / 1e6 for lag_ns in realtime.lag_ns],
        generator_share=processor_s / outcome.duration_s,
        machine=machine,
    )


def describe(found: WorkloadSample) -> str:
    """One line for the terminal."""
    if not found.latency_ms:
        return "no real-time request was answered"
    mean_ms, late_ms = statistics.fmean(found.latency_ms), quantile(found.latency_ms, 0.9)
    p99_ms = tail_or_shortage(found.latency_ms, 0.99)
    return (
        f"{len(found.latency_ms)} real-time answers, mean {mean_ms:.2f} ms, p90 {late_ms:.2f}, "
        f"p99 {p99_ms if isinstance(p99_ms, str) else f'{p99_ms:.2f}'}; "
        f"{found.per_s:.1f} a second in all, {found.dropped} dropped, {found.failed} failed; "
        f"processors busy {found.machine.busy:.0%}, stolen {found.machine.stolen:.1%}"
    )


def summarise_side(samples: Mapping[str, Sequence[WorkloadSample]], name: str) -> dict[str, Any]:
    """Columns of side ``name``: its times over all rounds, and ratios to RT-only.

    Percentiles are of the answers of all rounds together, and so are their ratios. The ratio of
    means and that of paces are medians over rounds of the side's value over RT-only's in the same
    round; ``mean_ratio_range`` is the least and the greatest of them.
    """
    own, base = samples[name], samples[RT_ONLY]
    row = {**_latency(own), **_ratios(own, base)}
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
        "round_busy": [round(each.machine.busy, 3) for each in own],
        "round_stolen": [round(each.machine.stolen, 3) for each in own],
    }


def summarise_screening(taken: WorkloadSample) -> dict[str, Any]:
    """Columns of a short run that only decides whether its side is worth a long one."""
    return {
        **_latency([taken]),
        "per_s": taken.per_s,
        "dropped": taken.dropped,
        "failed": taken.failed,
    }


def _pooled_ms(samples: Sequence[WorkloadSample]) -> list[float]:
    return [value for each in samples for value in each.latency_ms]


def _latency(own: Sequence[WorkloadSample]) -> dict[str, Any]:
    pooled = _pooled_ms(own)
    row: dict[str, Any] = {"realtime_answers": len(pooled)}
    if pooled:
        row |= {
            "mean_ms": statistics.fmean(pooled),
            "p50_ms": quantile(pooled, 0.5),
            "p90_ms": quantile(pooled, 0.9),
            "p99_ms": tail_or_shortage(pooled, 0.99),
            "p999_ms": tail_or_shortage(pooled, 0.999),
        }
    return row


def _ratios(own: Sequence[WorkloadSample], base: Sequence[WorkloadSample]) -> dict[str, Any]:
    """Of latencies; nothing where no round has answers of both."""
    means = [
        statistics.fmean(each.latency_ms) / statistics.fmean(alone.latency_ms)
        for each, alone in zip(own, base, strict=True)
        if each.latency_ms and alone.latency_ms
    ]
    if not means:
        return {}
    return {
        "mean_ratio": statistics.median(means),
        "mean_ratio_range": [round(min(means), 3), round(max(means), 3)],
        "p99_ratio": tail_ratio(_pooled_ms(own), _pooled_ms(base), 0.99),
    }


def median_ratio(one: Mapping[str, Any], other: Mapping[str, Any], column: str) -> float | None:
    """The median over rounds of one side's value over the other's in the same round.

    ``column``: ``round_per_s`` of two rows; None where no round has both.
    """
    pairs = zip(one[column], other[column], strict=True)
    ratios = [own / base for own, base in pairs if own is not None and base]
    return statistics.median(ratios) if ratios else None


# What the machine's processors did: where others worked, a run is not slow by itself.

_STAT = Path("/proc/stat")

_IDLE = (3, 4)  # idle, and waiting for a disk
_STOLEN = 7
_PARTS = 8  # those behind it are counted in user and nice already


@dataclass(frozen=True, slots=True)
class MachineTime:
    """Shares of all processors' time: with any process on them, and taken by the hypervisor."""

    busy: float
    stolen: float


def read_ticks(text: str | None = None) -> tuple[int, ...]:
    """Of all processors since the machine started, by what they did (``proc(5)``)."""
    line = (_STAT.read_text() if text is None else text).partition("\n")[0]
    return tuple(int(ticks) for ticks in line.split()[1 : 1 + _PARTS])


def between(before: tuple[int, ...], after: tuple[int, ...]) -> MachineTime:
    """Of two readings. Precondition: ``after`` is at least a tick later."""
    passed = [late - early for early, late in zip(before, after, strict=True)]
    total = max(1, sum(passed))
    stolen = passed[_STOLEN]
    idle = sum(passed[part] for part in _IDLE)
    return MachineTime((total - idle - stolen) / total, stolen / total)
