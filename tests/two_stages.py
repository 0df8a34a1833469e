"""The order in which several pytest processes (``pytest -n 2``) take the files of tests.

What measures times or starts servers comes last, in one process, when the others have ended.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

BESIDE_OTHERS = (
    "tests/conformance/",
    "tests/equivalence/",
    *(
        f"tests/server/test_{name}.py"
        for name in (
            "configuration_fields",
            "datatypes",
            "launching",
            "pipelines",
            "sequences_refused",
            "sequences_served",
            "triton_features",
        )
    ),
    "tests/unit/",
)
"""Nothing there asserts how long something takes on the clock, but for ``ALONE``."""

ALONE = (
    "tests/unit/benchmarks/",
    "tests/unit/disb/test_interruptions.py",
    *(
        f"tests/unit/runtime/test_{name}.py"
        for name in (
            "anticipation",
            "courtesy",
            "deadline_policy",
            "inherited_urgency",
            "joined_runs",
            "minimum_share",
            "no_inversion",
            "normal_share",
            "pipelines_with_caches",
            "preemption",
            "serving",
            "slices",
            "transport",
            "two_workers",
        )
    ),
)
"""What measures, asks who got a processor, or stages a race of milliseconds."""

_LAST = "what runs alone"


def is_alone(file: str) -> bool:
    return file.startswith(ALONE) or not file.startswith(BESIDE_OTHERS)


class TwoStages(LoadScopeScheduling):
    """File by file to whoever is free; the last unit, of all that runs alone, when one is left."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # not by numbers of tests: long ones are few

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _LAST if is_alone(file) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        if _LAST in self.workqueue:
            self.workqueue.move_to_end(_LAST)
        others = [other for other in self.nodes if other is not node]
        if list(self.workqueue) != [_LAST] or not others:
            super()._assign_work_unit(node)
        elif not all(other.shutting_down for other in others):
            node.shutdown()  # when it has done what it has
        # else this one goes on when the others have ended

    def remove_node(self, node: WorkerController) -> str | None:
        crashed: str | None = super().remove_node(node)
        for other in self.nodes:
            self._reschedule(other)
        return crashed
