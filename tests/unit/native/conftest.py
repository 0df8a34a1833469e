"""Every network that these tests draw is held against the bounds that a stored one must keep."""

from __future__ import annotations

import pytest

from brisk.compiled.bounds import check_steps
from brisk.compiled.library import Library
from brisk.native.run import SmallRun
from brisk.native.sketch import Sketch


@pytest.fixture(autouse=True)
def _tables_are_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = SmallRun._prepare

    def checked(run: SmallRun, executor: Library) -> None:
        assert run._drawn is not None
        steps = run._drawn.compiled() if isinstance(run._drawn, Sketch) else run._drawn
        operands = [operand.floats for operand in run.operands]
        results = [result.floats for result in run.results]
        check_steps(
            steps.entries, steps.floats, run.most_images, operands, results, executor.block
        )
        prepare(run, executor)

    monkeypatch.setattr(SmallRun, "_prepare", checked)
