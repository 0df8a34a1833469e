"""The order in which several pytest processes (``pytest -n 3``) take the files of tests.

What measures times or starts servers is marked ``timing``: a file with that mark comes last, in
one process, when the others have ended. If it is marked ``beside``, too, it waits for servers but
compares no times, and runs among the others. So one function that compares times keeps its whole
file for the end, while a processor idles: it is better in a file of its own. Tests of servers wait
most of the time, so there is one process more than there are processors.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

MARK, BESIDE = "pytest.mark.timing", "pytest.mark.beside"

_LAST = "what is timed"


@functools.cache
def is_timed(file: Path) -> bool:
    """Read from its source: a scheduler is told names of tests, not their marks. A mark within a
    text, of a file that is written by a test, is none."""
    text = file.read_text(encoding="utf-8")
    if MARK not in text:
        return False
    named = {
        ast.unparse(each) for each in ast.walk(ast.parse(text)) if type(each) is ast.Attribute
    }
    return MARK in named and BESIDE not in named


class TwoStages(LoadScopeScheduling):
    """File by file to whoever is free; the last unit, of all that is timed, when one is left."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._root = config.rootpath
        config.option.loadscopereorder = False  # not by numbers of tests: long ones are few

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _LAST if is_timed(self._root / file) else file

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
