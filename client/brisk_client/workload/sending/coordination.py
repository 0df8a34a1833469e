"""Periodic tasks of one frequency, spread so that they do not collide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from brisk_client.workload.spec.description import Periodic, Workload


def needs_coordination(workload: Workload) -> set[str]:
    """Names of tasks whose phase depends on stand-alone latencies."""
    groups: dict[float, list[str]] = defaultdict(list)
    for task in workload.tasks:
        if isinstance(task.load, Periodic) and task.load.phase_s is None:
            groups[task.load.frequency_hz].append(task.name)
    return {name for names in groups.values() if len(names) > 1 for name in names}


def coordinate(workload: Workload, alone_s: Mapping[str, float]) -> Workload:
    """The workload with every phase fixed.

    A task starts when those of its frequency before it would be done, were each alone: the rule
    of DISB's ``builtinLoadCoordinator``. ``alone_s``: by task, of ``needs_coordination``.
    """
    begun_s: dict[float, float] = defaultdict(float)
    tasks = []
    for task in workload.tasks:
        if isinstance(task.load, Periodic) and task.load.phase_s is None:
            frequency_hz = task.load.frequency_hz
            phase_s = begun_s[frequency_hz]
            task = replace(task, load=replace(task.load, phase_s=phase_s))
            begun_s[frequency_hz] += alone_s.get(task.name, 0.0)
        tasks.append(task)
    return replace(workload, tasks=tuple(tasks))
