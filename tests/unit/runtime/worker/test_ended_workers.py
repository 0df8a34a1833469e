"""Whom a worker that ends itself blames for it: nobody but who is the reason."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brisk.os_priority import Precedence
from brisk.protocol.shared_memory import MARK_BYTES, mark_is_set
from brisk.runtime.models.entry import SessionEntry
from brisk.runtime.models.load_watch import LoadWatch
from brisk.runtime.models.table import SessionTable
from brisk.runtime.pipelines.loading import PipelineLoads
from brisk.runtime.preemption.controllers import Background, PreemptionController
from brisk.runtime.preemption.gate import Gate
from brisk.runtime.requests.batch import Run, RunsInProgress
from brisk.runtime.worker.long_runs import LAST_RESORT_NS, PATIENCE_NS, STARVED_NS, LongRuns
from brisk.runtime.worker.relay import Step
from brisk.scheduling.job import JobState
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.policies import POLICIES, Limits
from support.models.segment_models import scaling
from support.runtime.gates import job, run_of
from support.runtime.requests import NotingLoader, a_model, a_peer


@pytest.fixture(autouse=True)
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, number: signals.append(number))
    return signals


def begun() -> Run:
    one = job(1, JobClass.NORMAL)
    one.state = JobState.RUNNING
    run = run_of(one)
    run.resume()
    return run


def is_marked(run: Run) -> bool:
    return mark_is_set(run.jobs[0].mark)


class Parts:
    """Long runs and sessions of a worker that computes nothing."""

    def __init__(self, kind: type[PreemptionController] = PreemptionController) -> None:
        loader, precedence = NotingLoader(), Precedence(0, print, set)
        self.loader = loader
        self.table = SessionTable(loader, PipelineLoads(loader.tell, LoadWatch(60.0)), precedence)
        self.runs = RunsInProgress()
        controller = kind(Gate(), POLICIES["preemptive"], Limits(share=0.0))
        none: Any = None
        self.long_runs = LongRuns(none, self.table, self.runs, controller, precedence)

    def begin_load(self, path: Path) -> SessionEntry:
        self.table.bind(a_peer(len(self.loader.asked)), a_model(path))
        entry = self.loader.asked[-1]
        entry.marks[:] = [memoryview(bytearray(MARK_BYTES))]
        entry.begin()
        return entry


def test_only_the_run_that_does_not_end_is_blamed(killed: list[int]) -> None:
    parts = Parts()
    endless, top, below, companion, aside = (begun() for _ in range(5))
    parts.runs.leading[:] = [below, top]
    parts.runs.companions.append(companion)
    parts.long_runs.aside[:] = [Step(aside, 0), Step(endless, 0)]
    parts.long_runs.end_worker("a run does not end", endless)
    assert killed
    assert is_marked(endless)
    assert [is_marked(run) for run in (top, below, companion, aside)] == [False] * 4


def test_only_the_load_that_takes_too_long_is_blamed(tmp_path: Path, killed: list[int]) -> None:
    parts = Parts()
    innocent, guilty = (
        parts.begin_load(scaling(tmp_path / f"{name}.onnx")) for name in ("innocent", "guilty")
    )
    marks = [entry.marks[0] for entry in (innocent, guilty)]
    parts.long_runs.end_worker("a load does not end", at_fault=guilty.path)
    assert killed
    assert [mark_is_set(mark) for mark in marks] == [False, True]


def test_no_load_is_blamed_for_a_run(tmp_path: Path, killed: list[int]) -> None:
    parts = Parts()
    mark = parts.begin_load(scaling(tmp_path / "loads.onnx")).marks[0]
    parts.long_runs.end_worker("a run does not end", begun())
    assert killed
    assert not mark_is_set(mark)


@pytest.mark.parametrize("awaits_load", [True, False])
def test_a_run_that_does_not_end_is_ended_by_force_where_no_load_holds_it(
    killed: list[int], awaits_load: bool
) -> None:
    parts = Parts()
    parts.long_runs.watch([unwanted(parts, 2 * LAST_RESORT_NS, awaits_load=awaits_load)])
    assert bool(killed) is not awaits_load


def unwanted(parts: Parts, waited_ns: int, *, awaits_load: bool = False) -> Step:
    """A step that was asked to end so long ago, of a thread that has not computed since."""
    run = begun()
    parts.long_runs._requests = SimpleNamespace(  # type: ignore[assignment]
        fail_all_late=lambda *_: None, queue=SimpleNamespace(peek=lambda: None)
    )
    run.jobs[0].state = JobState.ENDED
    run.session = SimpleNamespace(  # type: ignore[assignment]
        is_loading=True, awaits_load=awaits_load, awaits_bytes=False
    )
    step = Step(run, 0)
    step.ended_ns = time.monotonic_ns() - waited_ns
    return step


@pytest.mark.parametrize("kind", [PreemptionController, Background])
def test_a_run_that_yields_to_others_has_time_of_its_own_to_end(
    killed: list[int], kind: type[PreemptionController]
) -> None:
    """Others may keep it from the processors, without which it does not see the request."""
    parts = Parts(kind)
    step = unwanted(parts, 2 * LAST_RESORT_NS)
    if kind is PreemptionController:
        parts.long_runs.aside.append(step)
        parts.long_runs.watch([])
    else:
        parts.runs.leading.append(step.run)
        parts.long_runs.attend(step, is_load_waiting=False)
    assert not killed
    step.thread, step.computed_ns = threading.get_native_id(), -2 * LAST_RESORT_NS
    parts.long_runs.watch([step] if kind is Background else [])
    assert killed, "its thread has had a second of processor time"


@pytest.mark.parametrize(
    ("kind", "most_ns"), [(PreemptionController, PATIENCE_NS), (Background, STARVED_NS)]
)
def test_a_run_that_yields_to_others_has_only_so_long(
    killed: list[int], kind: type[PreemptionController], most_ns: int
) -> None:
    parts = Parts(kind)
    for waited_ns in (most_ns // 2, most_ns + 1):
        assert not killed
        parts.long_runs.aside[:] = [unwanted(parts, waited_ns)]
        parts.long_runs.watch([])
    assert killed
