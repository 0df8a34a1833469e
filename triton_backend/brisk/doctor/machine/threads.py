"""Threads against cores and quota: more threads than cores take turns in the middle of a layer."""

from __future__ import annotations

import os
from collections.abc import Iterator

from brisk.doctor.base import Deployment, Finding, Severity

NAME = "threads"


def look(deployment: Deployment) -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(deployment.server or 0))
    text = deployment.environment.get("BRISK_THREADS", "")
    threads = int(text) if text.isdecimal() else cores
    yield _against_cores(threads, cores)
    quota = _quota_cores(deployment)
    if quota is not None and quota < threads:
        whole = max(1, int(quota))
        yield Finding(
            NAME,
            Severity.ADVICE,
            f"{threads} threads, but the control group may use {quota:g} cores",
            "the kernel stops all threads once the quota of a period (100 ms) is used up, also in "
            "the middle of a real-time request",
            f"BRISK_THREADS={whole}, or a limit of {threads} cores",
        )


def _against_cores(threads: int, cores: int) -> Finding:
    found = f"{threads} threads on {cores} usable cores"
    if threads <= cores:
        return Finding(NAME, Severity.GOOD, found)
    return Finding(
        NAME,
        Severity.PROBLEM,
        found,
        "every layer waits for the thread that is not running",
        f"BRISK_THREADS={cores} or less",
    )


def _quota_cores(deployment: Deployment) -> float | None:
    """Cores' worth of time that the control group, or one above it, may use; None: no limit."""
    limits = []
    for group in (deployment.cgroup, *deployment.cgroup.parents):
        for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
            try:
                quota, period = " ".join((group / file).read_text() for file in files).split()
            except (OSError, ValueError):
                continue
            if quota not in ("max", "-1"):
                limits.append(int(quota) / int(period))
    return min(limits, default=None)
