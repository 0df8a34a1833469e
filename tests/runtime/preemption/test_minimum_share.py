"""The minimum share for best-effort work in a real runtime, under a policy that gives it none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from brisk.os_priority import niceness_for
from brisk.protocol.runtime_paths import RuntimePaths
from support.runtime.runtime_process import (
    SLOW_INPUT,
    Answer,
    describe,
    opened,
    slow_model,
    submit,
)
from support.runtime.two_workers import background
from support.waiting import TIMED

pytestmark = pytest.mark.timing

SHARE = 0.3


def execution_ns(answer: Answer) -> int:
    answer.output()
    assert answer.result is not None
    return answer.result.execution_ns


def test_best_effort_work_gets_its_share_beside_real_time_work_that_never_ends(
    place: RuntimePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_POLICY", "preemptive")
    monkeypatch.setenv("BRISK_BESTEFFORT_SHARE", str(SHARE))
    with opened(place, describe(slow_model(tmp_path / "slow.onnx", steps=50))) as connection:
        undisturbed = submit(connection, SLOW_INPUT)[1].output()
        alone_ns = min(
            execution_ns(submit(connection, SLOW_INPUT, "besteffort")[1]) for _ in range(3)
        )
        sent = [submit(connection, SLOW_INPUT, "realtime") for _ in range(60)]
        lazy = submit(connection, SLOW_INPUT, "besteffort")[1]
        np.testing.assert_array_equal(lazy.output(), undisturbed)
        assert not sent[-1][1].has_come, "it had its share before the gate opened"
        with TIMED:
            assert execution_ns(lazy) > 1.5 * alone_ns, "it was held in between"
        assert os.getpriority(os.PRIO_PROCESS, background(place)) == niceness_for(SHARE)
        for number, _ in sent:
            connection.cancel(number)
