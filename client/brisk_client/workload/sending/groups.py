"""Which tasks share a generator process."""

from __future__ import annotations

from collections import defaultdict

from brisk_client.urgency import JOB_CLASSES
from brisk_client.workload.spec.description import Dependent, Workload

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
