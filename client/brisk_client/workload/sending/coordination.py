"""Periodic tasks of one frequency, spread so that they do not collide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from brisk_client.urgency import JOB_CLASSES
from brisk_client.workload.spec.description import Dependent, Periodic, Workload


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


# Which tasks share a generator process.

BEST_EFFORT = JOB_CLASSES[-1]


def groups(workload: Workload) -> list[tuple[bool, list[str]]]:
    """Names of tasks for each process, and whether all of them are best-effort ones.

    Best-effort tasks have a process apart from the others, but for a task that depends on
    another: it shares that one's, with everything that is linked to it.
    """
    leader = {task.name: task.name for task in workload.tasks}

    def find(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    for task in workload.tasks:
        if isinstance(task.load, Dependent):
            for name in task.load.previous:
                leader[find(task.name)] = find(name)
    linked: dict[str, list[str]] = defaultdict(list)
    for task in workload.tasks:
        linked[find(task.name)].append(task.name)
    urgent: list[str] = []
    best_effort: list[str] = []
    for names in linked.values():
        is_best_effort = all(workload.task(name).job_class == BEST_EFFORT for name in names)
        (best_effort if is_best_effort else urgent).extend(names)
    return [group for group in ((False, urgent), (True, best_effort)) if group[1]]
