"""The checks of the workloads' rows, and their limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brisk_bench.disb.comparison.sampling import round_ratio
from brisk_bench.disb.plan import CONFINED, DEFAULT_POLICY, TRITON
from brisk_bench.disb.workloads import REAL
from brisk_bench.harness.report import REASON, Report, check_limit

ROUND, TRIAL = "round", "trial"
"""Values of the column ``stage``: a run of a round, and a short run of Triton's that only decides
which of its settings take part. Rows over all rounds have no stage."""

MEAN_LIMIT, P99_LIMIT = 1.02, 1.10
"""The most of the default policy's real-time latency over that alone, mean and p99."""

SHARES = {"A": 0.9, "B": 0.9, "C": 0.9, "D": 0.75, "E": 0.75, REAL: 0.9}
"""The least overall throughput of the default policy over that of ``shared`` (REEF, figure 11)."""

BASELINE_GAIN = {"C": 3.0, "D": 3.0}
"""The least p99 of Triton's best setting over the default policy's, by workload; 1 for others."""

SEVERAL = 2.0
"""The least overall throughput over that of RT-only, on ROOMY (REEF: 3 to 7.7)."""

ROOMY = ("E", REAL)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A workload's rows over all rounds, by side.

    ``sides``: all that took part.
    ``lacking``: why there is no figure; empty if there is one.
    """

    name: str
    rows: Mapping[str, Mapping[str, Any]]
    sides: Sequence[str]
    lacking: str

    def value(self, side: str, column: str) -> float | str:
        if self.lacking:
            return self.lacking
        cell = self.rows[side][column]
        return f"no {column} of {side}" if cell is None else cell

    def tails(self, side: str, base: str) -> float | str:
        """Return the real-time p99 over that of another side, or what one of them lacks."""
        own, other = self.value(side, "p99_ms"), self.value(base, "p99_ms")
        if isinstance(own, str) or isinstance(other, str):
            return own if isinstance(own, str) else str(other)
        return own / other

    def rounds(self, side: str, base: str, column: str) -> float | str:
        """Return the median over rounds of a side's value over another's, or what is lacking."""
        if self.lacking:
            return self.lacking
        own, other = self.rows[side][column], self.rows[base][column]
        ratio = round_ratio(own, other)
        return f"{base} has none" if ratio is None else ratio

    def best_of_triton(self) -> str:
        """Return Triton's side of the least real-time p99; empty without. See ``best_row``."""
        theirs = [side for side in self.sides if side.startswith(TRITON)]
        if self.lacking or not theirs:
            return next(iter(theirs), "")
        return str(best_row([self.rows[side] for side in theirs])["side"])

    def confined(self) -> str:
        """Return Triton's side that confines best-effort work; empty if none took part."""
        return next((side for side in self.sides if side.endswith(CONFINED)), "")


def best_row(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the row of the least p99.

    A row with too few requests for a p99 is returned if its p90 is the least: it may be the best
    one, and what is compared with it says so. Precondition: there are rows.
    """
    quickest = min(rows, key=lambda row: row["p90_ms"])
    with_p99 = [row for row in rows if not isinstance(row["p99_ms"], str)]
    if isinstance(quickest["p99_ms"], str) or not with_p99:
        return quickest
    return min(with_p99, key=lambda row: row["p99_ms"])


def best_trial(trials: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the side of least p90 in its short run; one without requests only if all are."""
    return min(trials, key=lambda side: trials[side].get("p90_ms", math.inf))


def add_checks(report: Report) -> None:
    """Add the checks that the rows of ``report`` cover.

    If the machine was not quiet for a workload, its checks say so instead of a figure, and fail.
    """
    for compared in _workloads(report.rows):
        if DEFAULT_POLICY in compared.sides:
            _judge(report, compared)


def _workloads(rows: Sequence[Mapping[str, Any]]) -> list[_Compared]:
    workloads = []
    for name in dict.fromkeys(row["workload"] for row in rows if "workload" in row):
        own = [row for row in rows if row.get("workload") == name]
        summaries = {row["side"]: row for row in own if "side" in row and "stage" not in row}
        sides = dict.fromkeys(
            row["side"] for row in own if row.get("stage", ROUND) == ROUND and "side" in row
        )
        lacking = next((str(row[REASON]) for row in own if REASON in row), "")
        workloads.append(_Compared(name, summaries, list(sides), lacking))
    return workloads


def _judge(report: Report, compared: _Compared) -> None:
    def check(name: str, value: float | str, comparison: str, limit: float) -> None:
        label = f"{compared.name}: {name}"
        report.checks.append(check_limit(label, value, comparison, limit, 3))

    ours = DEFAULT_POLICY
    check("real-time mean / RT-only", compared.value(ours, "mean_ratio"), "<=", MEAN_LIMIT)
    check("real-time p99 / RT-only", compared.value(ours, "p99_ratio"), "<=", P99_LIMIT)
    if "shared" in compared.sides:
        share = compared.rounds(ours, "shared", "round_per_s")
        check("throughput / shared", share, ">=", SHARES[compared.name])
    if compared.name in ROOMY:
        check("throughput / RT-only", compared.value(ours, "throughput_ratio"), ">=", SEVERAL)
    if best := compared.best_of_triton():
        gain = BASELINE_GAIN.get(compared.name, 1.0)
        name = "real-time p99 of Triton's best setting / ours"
        check(name, compared.tails(best, ours), ">=", gain)
        share = compared.rounds(ours, best, "round_per_s")
        check("throughput / that of Triton's best setting", share, ">=", 1.0)
    if confined := compared.confined():
        share = compared.rounds(ours, confined, "round_per_s")
        check(f"throughput / that of {TRITON} {CONFINED}", share, ">=", 1.0)
    if best and not compared.lacking:
        report.notes.append(f"{compared.name}: Triton's best setting is '{best}'")
