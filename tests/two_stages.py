"""The order in which several pytest processes (``pytest -n 2``) take the files of tests.

What measures times or starts servers is marked ``timing``: it comes last, in one process, when the
others have ended.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

TIMED = "@timing"
"""Behind the names of the tests that are marked, since names are all that a scheduler is told."""


def name_timed(items: list[pytest.Item]) -> None:
    """In a process of a parallel run: let the scheduler see who is marked."""
    for item in items:
        if item.get_closest_marker("timing") is not None:
            item._nodeid += TIMED


class TwoStages(LoadScopeScheduling):
    """File by file to whoever is free; the last unit, of all that is timed, when one is left."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # not by numbers of tests: long ones are few

    def _split_scope(self, nodeid: str) -> str:
        return TIMED if nodeid.endswith(TIMED) else nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        if TIMED in self.workqueue:
            self.workqueue.move_to_end(TIMED)
        others = [other for other in self.nodes if other is not node]
        if list(self.workqueue) != [TIMED] or not others:
            super()._assign_work_unit(node)
        elif not all(other.shutting_down for other in others):
            node.shutdown()  # when it has done what it has
        # else this one goes on when the others have ended

    def remove_node(self, node: WorkerController) -> str | None:
        crashed: str | None = super().remove_node(node)
        for other in self.nodes:
            self._reschedule(other)
        return crashed
