"""How long a real-time request waits until it runs, and what that costs (REEF, 7.3)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from brisk_client.disb.chains import PROBE_WIDTH, build_chain, chain_of
from brisk_client.disb.networks import NETWORKS
from brisk_client.disb.probe import (
    ProbedModel,
    Timed,
    ask_after_pauses,
    kept_busy,
    preempt_at_random,
    probed_runtime,
)
from brisk_client.disb.sampling import quantile
from brisk_client.disb.sides import DEFAULT_POLICY, POLICY_VARIABLE
from brisk_client.report import Check, Report

URGENT = "densenet"
"""The real-time network: the shortest of the five."""

WAITING = "sequential"
"""The policy that lets a running best-effort job end: the wait-based preemption of figure 12."""

LAYERS_MS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

LIMIT_US = 200.0
"""p99 of the default policy's preemption latency."""

DEPENDENCE_LIMIT = 2.0
"""p50 at the longest layers over p50 at the shortest, at most: it does not depend on them."""

SETTLING_RUNS = 10

RESTORED = 20
"""Runs that are interrupted once each, for the restore overhead."""

NOTES = (
    "preemption latency: from the frontend's sending of a real-time request, at a random moment "
    "of a best-effort run, to when the worker takes it up for its first layer; without Triton; "
    "to_worker: until the worker has read it, in_worker: from there on, which is what REEF "
    "measures; alone: after the same pauses, without best-effort work",
    "restore overhead: how much longer an interrupted best-effort run took than one alone and the "
    "real-time request together; below 0 where both ran at once",
)


def measure_networks(report: Report, policies: Sequence[str], count: int, threads: int) -> None:
    """Rows of figures 12(b) and 15(b): each network interrupted ``count`` times."""
    models = {name: network.build() for name, network in NETWORKS.items()}
    for policy in policies:
        variables = {POLICY_VARIABLE: policy, "BRISK_THREADS": str(threads)}
        with probed_runtime(models, variables) as probed:
            alone_us = _alone(probed[URGENT], count)
            for name, background in probed.items():
                row = _row(policy, probed[URGENT], background, count)
                report.rows.append({"figure": "12", "best_effort": name, **row, **alone_us})


def measure_layers(report: Report, policies: Sequence[str], count: int, threads: int) -> None:
    """Rows of figure 13: best-effort layers of LAYERS_MS."""
    variables = {"BRISK_THREADS": str(threads)}
    probe_layers = 8
    with probed_runtime({"probe": build_chain(PROBE_WIDTH, probe_layers)}, variables) as probed:
        runs = [probed["probe"].ask("normal").execution_ns for _ in range(SETTLING_RUNS + 5)]
    layer_ms = min(runs) / 1e6 / probe_layers
    models = {f"{ms:g} ms": chain_of(ms, layer_ms) for ms in LAYERS_MS}
    models[URGENT] = NETWORKS[URGENT].build()
    for policy in policies:
        with probed_runtime(models, {**variables, POLICY_VARIABLE: policy}) as probed:
            alone_us = _alone(probed[URGENT], count)
            for ms in LAYERS_MS:
                row = _row(policy, probed[URGENT], probed[f"{ms:g} ms"], count)
                row |= {"figure": "13", "best_effort": f"{ms:g} ms", "layer_ms": ms, **alone_us}
                report.rows.append(row)


def _alone(urgent: ProbedModel, count: int) -> dict[str, float]:
    urgent.settle("realtime", SETTLING_RUNS)
    met = ask_after_pauses(urgent, count, seed=2)
    waits = [each.preemption_ns / 1e3 for each in met]
    queued = [each.queue_ns / 1e3 for each in met]
    return {
        "alone_p50_us": quantile(waits, 0.5),
        "alone_p99_us": quantile(waits, 0.99),
        "alone_in_worker_p99_us": quantile(queued, 0.99),
    }


def _row(policy: str, urgent: ProbedModel, background: ProbedModel, count: int) -> dict[str, Any]:
    background.settle("besteffort", 3)
    alone_ms = statistics.median(background.ask("besteffort").execution_ns for _ in range(5)) / 1e6
    with kept_busy(background):
        met = ask_after_pauses(urgent, count // 10 if policy == WAITING else count, seed=1)
    urgent_ones, interrupted = preempt_at_random(urgent, background, RESTORED, seed=1)
    waits_us = [each.preemption_ns / 1e3 for each in met]
    queued_us = [each.queue_ns / 1e3 for each in met]
    sent_us = [(each.preemption_ns - each.queue_ns) / 1e3 for each in met]
    restores = [
        (run.execution_ns - _overlap_ns(each, run)) / 1e6 - alone_ms
        for each, run in zip(urgent_ones, interrupted, strict=True)
        if _overlap_ns(each, run)
    ]
    row: dict[str, Any] = {
        "policy": policy,
        "preemption_p50_us": quantile(waits_us, 0.5),
        "preemption_p90_us": quantile(waits_us, 0.9),
        "preemption_p99_us": quantile(waits_us, 0.99),
        "preemption_worst_us": max(waits_us),
        "to_worker_p50_us": quantile(sent_us, 0.5),
        "to_worker_p99_us": quantile(sent_us, 0.99),
        "in_worker_p50_us": quantile(queued_us, 0.5),
        "in_worker_p99_us": quantile(queued_us, 0.99),
        "interrupted": len(restores),
        "alone_ms": alone_ms,
    }
    if restores:
        row["restore_ms"] = statistics.median(restores)
        row["restore_percent"] = 100 * row["restore_ms"] / alone_ms
    return row


def _overlap_ns(urgent: Timed, background: Timed) -> int:
    """How long the urgent request ran within the best-effort run; 0 where it did not."""
    ended_ns = background.started_ns + background.execution_ns
    end_ns = min(urgent.started_ns + urgent.execution_ns, ended_ns)
    return max(0, end_ns - max(urgent.started_ns, background.started_ns))


def add_checks(report: Report) -> None:
    """Of the default policy's rows of figures 12 and 13."""
    ours = [row for row in report.rows if row.get("policy") == DEFAULT_POLICY]
    networks = [row["preemption_p99_us"] for row in ours if row["figure"] == "12"]
    if networks:
        _at_most(report, "preemption latency p99 over all networks, us", max(networks), LIMIT_US)
        worst_us = max(row["in_worker_p99_us"] for row in ours if row["figure"] == "12")
        _at_most(report, "of it in the worker, p99 over all networks, us", worst_us, LIMIT_US)
    layers = [row for row in ours if row["figure"] == "13"]
    if layers:
        worst_us = max(row["preemption_p99_us"] for row in layers)
        _at_most(report, "preemption latency p99 over all layer lengths, us", worst_us, LIMIT_US)
        worst_us = max(row["in_worker_p99_us"] for row in layers)
        _at_most(report, "of it in the worker, p99 over all layer lengths, us", worst_us, LIMIT_US)
        growth = layers[-1]["preemption_p50_us"] / layers[0]["preemption_p50_us"]
        text = "preemption latency p50, layers of 300 ms / of 1 ms"
        _at_most(report, text, growth, DEPENDENCE_LIMIT)


def _at_most(report: Report, name: str, value: float, limit: float) -> None:
    report.checks.append(Check(name, round(value, 2), f"<= {limit:g}", value <= limit))
