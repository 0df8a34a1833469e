"""Trials of pipelines: threads compute them, and the worker waits for no long segment."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brisk.errors import InternalError, InvalidModelError, InvalidRequestError, UnavailableError
from brisk.os_priority import Precedence
from brisk.protocol.shared_memory import MARK_BYTES, mark_is_set
from brisk.runtime.models.entry import Binding, LoadOutcome, LoadState, SessionEntry
from brisk.runtime.models.load_watch import ABANDONED_S, LoadWatch
from brisk.runtime.pipelines import assembly, networks
from brisk.runtime.pipelines.assembly import LONG_RUN_NS, RUNS, Trial, try_pipeline
from brisk.runtime.pipelines.loading import PipelineLoads, PipelineTrial
from brisk.runtime.pipelines.networks import NodeNetworks, PipelineNetwork
from brisk.runtime.pipelines.session import PipelineSession
from brisk.runtime.requests.batch import RunsInProgress
from brisk.runtime.worker.worker import Worker
from brisk.scheduling.job import JobState
from brisk.scheduling.job_class import JobClass
from brisk.segments.frame import control
from support.runtime.gates import job, run_of
from support.runtime.requests import ASession, a_model, a_peer
from support.waiting import wait_until

SESSION: Any = object()


class Trials:
    """One pipeline under trial, whose second segment takes until ``goes_on`` is set."""

    def __init__(self, precedence: Precedence | None) -> None:
        self.told: list[LoadOutcome] = []
        self.now_s = 0.0
        self.watch = LoadWatch(60.0, lambda: self.now_s)
        self.loads = PipelineLoads(self.told.append, self.watch, precedence)
        self.entry = SessionEntry("traffic", Path("pipeline.json"), a_model())
        self.entry.bindings.append(Binding(a_peer(), a_model(), "traffic"))
        self.goes_on = threading.Event()
        self.begun: list[int] = []
        self.controls: list[Any] = []
        give_up = self.loads._give_up
        self.loads.tried.append(
            PipelineTrial(self.entry, SESSION, self.segments(), self.watch, give_up)
        )

    def segments(self) -> Trial:
        self.were_aside = [(yield)]
        self.begun.append(threading.get_native_id())
        self.controls.append(control())
        assert self.goes_on.wait(60.0)
        self.were_aside.append((yield))

    def advance(self) -> bool:
        """Whether the trial has ended."""
        self.loads.advance()
        return not self.loads.tried


@pytest.fixture
def trials() -> Iterator[Trials]:
    made = Trials(Precedence(0, print, set))
    yield made
    made.goes_on.set()


def test_a_segment_that_takes_long_is_not_waited_for(trials: Trials) -> None:
    while not trials.begun:
        assert not trials.advance()
    for _ in range(3):
        assert not trials.advance()
    assert trials.loads.is_under_way
    assert not trials.told
    trials.goes_on.set()
    wait_until(trials.advance, "the trial's end")
    (outcome,) = trials.told
    assert (outcome.entry, outcome.session, outcome.error) == (trials.entry, SESSION, None)
    assert trials.were_aside == [False, True]


class Network:
    """Its runs take a second, of which nothing is computed, one segment each."""

    inputs = outputs = ()
    is_loading = False
    now_ns = 0

    def start(self, *_: object) -> Any:
        return SimpleNamespace(step=self.step, early=None, results=dict)

    def step(self) -> bool:
        self.now_ns += 1_000_000_000
        self.is_loading = False
        return True


@pytest.mark.parametrize(
    ("was_aside", "is_loading", "expected"),
    [(False, False, 1), (True, False, RUNS), (False, True, 2)],
)
def test_what_a_run_waits_for_others_aside_or_for_its_load_is_not_learned(
    monkeypatch: pytest.MonkeyPatch, was_aside: bool, is_loading: bool, expected: int
) -> None:
    session: Any = Network()
    session.is_loading = is_loading
    clock = SimpleNamespace(monotonic_ns=lambda: session.now_ns)
    monkeypatch.setattr(networks, "time", clock)
    network = PipelineNetwork("node 'single'", session)
    variant = SimpleNamespace(name="only", accuracy=1.0)
    described: Any = SimpleNamespace(name="single", inputs={}, variants=[variant])
    node = NodeNetworks(described, {"only": network}, None)
    pipeline: Any = SimpleNamespace(
        description=SimpleNamespace(trial_shapes={}),
        signature=SimpleNamespace(inputs={}),
        nodes={"single": node},
    )
    trial, runs = try_pipeline(pipeline), 1
    next(trial)
    with contextlib.suppress(StopIteration):
        while True:
            trial.send(was_aside)
            runs += 1
    assert (network.expect_ns(()) < LONG_RUN_NS) is was_aside
    assert runs == expected


@pytest.mark.parametrize("is_early", [False, True])
def test_a_run_of_a_pipeline_awaits_the_load_of_any_of_its_networks(is_early: bool) -> None:
    loaded, loading = (PipelineNetwork("", ASession(awaits_load=each)) for each in (False, True))
    described: Any = SimpleNamespace(name="single")
    early, only = (loading, loaded) if is_early else (None, loading)
    node = NodeNetworks(described, {"only": only}, early)
    none: Any = None

    def pipeline(*nodes: NodeNetworks) -> PipelineSession:
        return PipelineSession(none, none, dict(enumerate(nodes)), 0, ("m", "1"))

    other = NodeNetworks(described, {"only": loaded}, None)
    assert not pipeline(other).awaits_load
    assert pipeline(other, node).awaits_load


def test_a_trial_that_has_ended_aside_is_told_of_beside_real_time_runs() -> None:
    rejoined: list[frozenset[int]] = []
    precedence: Any = SimpleNamespace(
        stand_aside=lambda thread: frozenset([thread]), rejoin=rejoined.append
    )
    trials, runs = Trials(precedence), RunsInProgress()
    worker: Any = SimpleNamespace(
        _pipelines=trials.loads,
        _progress=runs,
        _long_runs=runs,
        _is_held_by_load=lambda: False,
        _requests=SimpleNamespace(queue=SimpleNamespace(peek=lambda job_class: None)),
        _queues={JobClass.NORMAL: SimpleNamespace(issuing=contextlib.nullcontext)},
    )
    while not trials.loads.is_under_way:
        Worker._try_pipelines(worker)
    runs.leading.append(run_of(job(1)))
    Worker._try_pipelines(worker)
    assert trials.loads.is_under_way
    trials.goes_on.set()

    def is_over() -> bool:
        Worker._try_pipelines(worker)
        return not trials.loads.is_under_way

    wait_until(is_over, "the segment's end", 10.0)
    assert rejoined == [frozenset(trials.begun)]
    for _ in range(3):
        Worker._try_pipelines(worker)
    assert trials.loads.tried, "no other segment begins"
    runs.leading.clear()
    while trials.loads.tried:
        Worker._try_pipelines(worker)
    assert trials.told[0].session is SESSION


def test_the_thread_that_alone_has_the_device_computes_its_trials() -> None:
    trials = Trials(None)
    trials.goes_on.set()
    wait_until(trials.advance, "the trial's end")
    assert trials.begun == [threading.get_native_id()]
    assert trials.told[0].session is SESSION


def test_of_a_trial_that_nobody_waits_for_no_outcome_is_told(trials: Trials) -> None:
    while not trials.begun:
        trials.advance()
    trials.loads.drop(trials.entry)
    assert trials.loads.is_under_way, "it is computed until it ends"
    trials.goes_on.set()
    wait_until(trials.advance, "its end")
    assert not trials.told


def test_a_trial_that_takes_too_long_is_given_up_and_asked_to_end(trials: Trials) -> None:
    while not trials.begun:
        trials.advance()
    trials.now_s = 60.0
    assert trials.watch.look() is None
    (outcome,) = trials.told
    assert isinstance(outcome.error, InvalidModelError)
    assert "takes longer than 60 s (BRISK_MAX_LOAD_S)" in str(outcome.error)
    trials.entry.bindings.clear()
    assert trials.controls[0]._has_ended
    trials.now_s += ABANDONED_S
    endless = trials.watch.look()
    assert endless is not None, "else the worker ends"
    trials.goes_on.set()
    wait_until(trials.advance, "its end")
    assert len(trials.told) == 1
    assert trials.watch.look() is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidRequestError("node 'single': no such shape"), "node 'single': no such shape"),
        (OSError(5, "Input/output error"), "the trial run failed: OSError: .*output error"),
    ],
)
def test_an_error_of_a_trial_is_told(trials: Trials, error: Exception, said: str) -> None:
    def failing() -> Trial:
        yield
        raise error

    trials.loads.tried.clear()
    give_up = trials.loads._give_up
    trials.loads.tried.append(
        PipelineTrial(trials.entry, SESSION, failing(), trials.watch, give_up)
    )
    wait_until(trials.advance, "its end")
    assert re.search(said, str(trials.told[0].error))


def test_a_trial_for_which_no_thread_can_begin_fails_its_load_alone(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert trials.advance()
    error = trials.told[0].error
    assert isinstance(error, UnavailableError)
    assert str(error) == "the trial run of pipeline.json cannot go on: can't start new thread"


def test_an_error_that_nobody_expects_of_an_assembly_is_told(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    def assemble(*_: object) -> None:
        raise KeyError("y")

    monkeypatch.setattr(assembly, "assemble", assemble)
    trials.entry.pipeline = SimpleNamespace(networks=())  # type: ignore[assignment]
    trials.loads.add(trials.entry)
    (outcome,) = trials.told
    assert isinstance(outcome.error, InternalError)
    assert "the pipeline's assembly failed: KeyError: 'y'" in str(outcome.error)


def test_a_crash_in_a_trial_is_the_pipeline_s_also_where_its_networks_were_loaded_before(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its load would be tried without end, and end a worker each time."""
    monkeypatch.setattr(assembly, "assemble", lambda *_: SESSION)
    trials.entry.pipeline = SimpleNamespace(networks=())  # type: ignore[assignment]
    mark = memoryview(bytearray(MARK_BYTES))
    trials.entry.ask(mark)
    assert not mark_is_set(mark)
    trials.loads.add(trials.entry)
    assert mark_is_set(mark)
    trials.entry.reach(LoadState.LOADED)
    assert not mark_is_set(mark)


def test_no_trial_is_computed_with_a_run_that_could_be_blamed_or_is_real_time() -> None:
    runs = RunsInProgress()
    with runs.parked():
        assert not runs.has_realtime
    one = job(1, JobClass.NORMAL)
    one.state = JobState.RUNNING
    top = run_of(one)
    runs.leading.append(top)
    top.resume()
    assert one.mark[0]
    with runs.parked():
        assert not one.mark[0]
    assert one.mark[0]
    assert not runs.has_realtime
    runs.companions.append(run_of(job(2)))
    assert runs.has_realtime
