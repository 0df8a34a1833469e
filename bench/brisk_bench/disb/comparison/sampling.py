"""One run of one workload on one side, and what the runs of several rounds say together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from brisk_bench.disb.plan import RT_ONLY
from brisk_bench.disb.served import REALTIME
from brisk_bench.disb.sides import Side
from brisk_bench.harness.sampling import median_ratio
from brisk_bench.harness.tails import (
    curve,
    percentile_columns,
    shortage,
    tail,
    tail_or_shortage,
    tail_ratio,
)
from brisk_client.workload.description import Workload
from brisk_client.workload.runner import BEST_EFFORT, run_workload

MEAN_DIFFERENCE, P99_DIFFERENCE = 0.03, 0.10
"""The most by which the real-time clients alone may differ before and after a round's laps."""

BEFORE, AFTER = f"{RT_ONLY} before", f"{RT_ONLY} after"


@dataclass(frozen=True, slots=True)
class WorkloadSample:
    """One run of a workload on one side.

    ``latency_ms``: of all real-time requests, from when they were due; of those without an answer
      as ``TaskOutcome.missed_ns`` counts them.
    ``per_s``, ``best_effort_per_s``: answers a second of all classes, and of best effort.
    ``lag_ms``: how late the load generator of the real-time clients was.
    ``generator_share``: the share of one core that all generators used.
    ``busy``, ``stolen``: shares of all processors' time with any process on them, and taken by the
      hypervisor. They show whether other work slowed a run down.
    """

    latency_ms: Sequence[float]
    per_s: float
    best_effort_per_s: float
    dropped: int
    failed: int
    lag_ms: Sequence[float]
    generator_share: float
    busy: float
    stolen: float

    @property
    def mean_ms(self) -> float:
        return statistics.fmean(self.latency_ms)


def sample(side: Side, workload: Workload, warm_ups: int) -> WorkloadSample:
    """Run the workload on the side. Raises WorkloadFailedError."""
    import psutil

    psutil.cpu_times_percent()  # the next call is of the time since this one
    outcome = run_workload(side.fit(workload), side.server.grpc, warm_ups=warm_ups)
    machine = psutil.cpu_times_percent()
    realtime = outcome.of_class(REALTIME)
    processor_s = sum(generator.processor_s for generator in outcome.generators)
    return WorkloadSample(
        latency_ms=[each_ns / 1e6 for each_ns in (*realtime.latency_ns, *realtime.missed_ns)],
        per_s=outcome.per_s(),
        best_effort_per_s=outcome.per_s(BEST_EFFORT),
        dropped=realtime.dropped,
        failed=realtime.failed,
        lag_ms=[lag_ns / 1e6 for lag_ns in realtime.lag_ns],
        generator_share=processor_s / outcome.duration_s,
        busy=(100 - machine.idle - machine.iowait - machine.steal) / 100,
        stolen=machine.steal / 100,
    )


def joined(laps: Sequence[WorkloadSample]) -> WorkloadSample:
    """Join equally long parts of one run into that run. Precondition: there are some."""

    def mean(of: Callable[[WorkloadSample], float]) -> float:
        return statistics.fmean(map(of, laps))

    return WorkloadSample(
        latency_ms=[each for lap in laps for each in lap.latency_ms],
        per_s=mean(lambda lap: lap.per_s),
        best_effort_per_s=mean(lambda lap: lap.best_effort_per_s),
        dropped=sum(lap.dropped for lap in laps),
        failed=sum(lap.failed for lap in laps),
        lag_ms=[each for lap in laps for each in lap.lag_ms],
        generator_share=mean(lambda lap: lap.generator_share),
        busy=mean(lambda lap: lap.busy),
        stolen=mean(lambda lap: lap.stolen),
    )


@dataclass(frozen=True, slots=True)
class Round:
    """Runs of all sides with the same arrivals, in laps, each of which begins and ends with the
    real-time clients alone.

    ``arrivals``: how many times as far apart as in the paper they were.
    ``seconds``: of each run, all laps together.
    ``before``, ``after``: the laps' beginnings, and their ends.
    ``sides``: by name.
    """

    number: int
    arrivals: float
    seconds: float
    before: WorkloadSample
    after: WorkloadSample
    sides: dict[str, WorkloadSample]

    @property
    def runs(self) -> dict[str, WorkloadSample]:
        """All runs by name, in the order of the rows."""
        return {BEFORE: self.before, **self.sides, AFTER: self.after}

    def of(self, side: str) -> list[WorkloadSample]:
        """Return the side's runs: two of the real-time clients alone, one of any other side."""
        return [self.before, self.after] if side == RT_ONLY else [self.sides[side]]

    @property
    def disturbance(self) -> str:
        """The difference of the two runs alone, if it is too great or cannot be determined.

        Empty if the machine was quiet: only then does a difference of other sides say something
        about them.
        """
        both = [self.before.latency_ms, self.after.latency_ms]
        if not all(both):
            return "no real-time request alone"
        tails = [tail(each, 0.99) for each in both]
        if tails[0] is None or tails[1] is None:
            return f"p99: {shortage(min(map(len, both)), 0.99)}"
        mean = _difference(self.before.mean_ms, self.after.mean_ms)
        p99 = _difference(tails[0], tails[1])
        if mean <= MEAN_DIFFERENCE and p99 <= P99_DIFFERENCE:
            return ""
        return f"mean {mean * 100:.1f} %, p99 {p99 * 100:.1f} %"


def _difference(one: float, other: float) -> float:
    """Return by how much the greater exceeds the lesser, as a share of the lesser."""
    return max(one, other) / min(one, other) - 1


def describe(found: WorkloadSample) -> str:
    """Describe a run in one line for the terminal."""
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in run_columns(found).items()
    )


def run_columns(found: WorkloadSample) -> dict[str, Any]:
    """Return the columns of one run by itself."""
    return {
        **_latency([found]),
        "per_s": found.per_s,
        "best_effort_per_s": found.best_effort_per_s,
        **_missed([found]),
        "busy": round(found.busy, 3),
        "stolen": round(found.stolen, 3),
    }


def summarise_side(rounds: Sequence[Round], side: str) -> dict[str, Any]:
    """Return the columns of a side: its times over all of ``rounds``, and ratios to the real-time
    clients alone. Precondition: at least one round, all of them quiet.

    Percentiles are of the requests of all rounds together, and so are their ratios. The ratio of
    means and that of paces are medians over rounds of the side's value over that alone, before and
    after, in the same round; ``mean_ratio_range`` is the least and the greatest of them.
    ``quantiles_ms``: the distribution of the real-time latency, at the shares of ``tails.CURVE``.
    """
    own = [run for each in rounds for run in each.of(side)]
    base = [run for each in rounds for run in each.of(RT_ONLY)]
    round_mean_ms = [statistics.fmean(run.mean_ms for run in each.of(side)) for each in rounds]
    means = [
        mean_ms / statistics.fmean(run.mean_ms for run in each.of(RT_ONLY))
        for each, mean_ms in zip(rounds, round_mean_ms, strict=True)
    ]
    per_s = [statistics.fmean(run.per_s for run in each.of(side)) for each in rounds]
    alone_per_s = [statistics.fmean(run.per_s for run in each.of(RT_ONLY)) for each in rounds]
    best_effort_per_s = [
        statistics.fmean(run.best_effort_per_s for run in each.of(side)) for each in rounds
    ]
    return {
        "quiet_rounds": len(rounds),
        **_latency(own),
        "mean_ratio": statistics.median(means),
        "mean_ratio_range": [round(min(means), 3), round(max(means), 3)],
        "p99_ratio": tail_ratio(_pooled_ms(own), _pooled_ms(base), 0.99),
        "per_s": statistics.median(per_s),
        "throughput_ratio": round_ratio(per_s, alone_per_s),
        "best_effort_per_s": statistics.median(best_effort_per_s),
        **_missed(own),
        "lag_p99_ms": tail_or_shortage([lag for run in own for lag in run.lag_ms], 0.99),
        "generator_share": statistics.median(run.generator_share for run in own),
        "round_mean_ms": round_mean_ms,
        "round_per_s": per_s,
        "round_best_effort_per_s": best_effort_per_s,
        "round_arrivals": [each.arrivals for each in rounds],
        "quantiles_ms": curve(_pooled_ms(own)),
    }


def round_ratio(own: Sequence[float], base: Sequence[float]) -> float | None:
    """Return the median over rounds of a side's value over another's; None if that has none."""
    rounds = [pair for pair in zip(own, base, strict=True) if pair[1]]
    return median_ratio(rounds) if rounds else None


def _pooled_ms(runs: Sequence[WorkloadSample]) -> list[float]:
    return [value for each in runs for value in each.latency_ms]


def _latency(runs: Sequence[WorkloadSample]) -> dict[str, Any]:
    pooled = _pooled_ms(runs)
    row: dict[str, Any] = {"realtime_requests": len(pooled)}
    if pooled:
        row["mean_ms"] = statistics.fmean(pooled)
        row |= percentile_columns(pooled, ("p50", "p90", "p99", "p999"), "ms")
    return row


def _missed(runs: Sequence[WorkloadSample]) -> dict[str, Any]:
    """Count the real-time requests without an answer of their own, and return their share."""
    dropped, failed = (sum(getattr(run, name) for run in runs) for name in ("dropped", "failed"))
    requests = sum(len(run.latency_ms) for run in runs)
    return {
        "dropped": dropped,
        "failed": failed,
        "missed_percent": 100 * (dropped + failed) / max(1, requests),
    }
