"""Which runs get a companion, and which are wanted back from it, in virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from brisk.runtime import beside as rules
from brisk.runtime.batch import RequestJob, Run, profile_key
from brisk.runtime.beside import LEAST_NS, MOST_STRETCHED, Beside
from brisk.runtime.companion import Companion, Stopped
from brisk.scheduling.job import Job, JobClass, JobState
from brisk.scheduling.profile import ProfileTable
from brisk.wire.records import InferForm

RUN_NS = 10 * LEAST_NS


class Hand:
    """Computes what a test says it has computed."""

    threads = 1

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.is_recalled = False
        self.stopped: Stopped | None = None

    def begin(self, run: Run) -> None:
        self.runs.append(run)

    def recall(self) -> None:
        self.is_recalled = True

    def take(self) -> Stopped | None:
        return self.stopped

    def keep_off(self) -> None:
        return None


class Scene:
    """Models are sessions of their names; those whose names begin with ``odd`` are not plain."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, is_wanted: bool = True, threads: int = 2
    ) -> None:
        monkeypatch.setattr(rules, "_is_plain", lambda session: not session.startswith("odd"))
        self.stretches: dict[str, float] = {}
        monkeypatch.setattr(rules, "_stretch", lambda session, _: self.stretches.get(session, 1.0))
        self.hand = Hand()
        self.profiles = ProfileTable()
        self.beside = Beside(
            cast(Companion, self.hand), threads, self.profiles, lambda: 0, is_wanted=is_wanted
        )

    def job(
        self,
        model: str,
        job_class: JobClass = JobClass.NORMAL,
        run_ns: int | None = RUN_NS,
        deadline_ns: int | None = None,
    ) -> RequestJob:
        payload: Any = SimpleNamespace(
            binding=SimpleNamespace(key=model, session=model),
            record=SimpleNamespace(form=InferForm(0, (), (), job_class.value)),
        )
        if run_ns is not None:
            self.profiles.find(profile_key(payload)).learn_run(run_ns, beside=False)
        return Job(0, model, job_class, 0, deadline_ns, payload)

    def run(self, model: str, job_class: JobClass = JobClass.NORMAL, **job: Any) -> Run:
        one = self.job(model, job_class, **job)
        fake = SimpleNamespace(
            jobs=[one],
            session=model,
            job_class=job_class,
            threads=2,
            shapes=(),
            is_disturbed=False,
            is_wanted=True,
        )
        return cast(Run, fake)

    def is_recalled(self, top: Run | None, following: RequestJob | None) -> bool:
        self.hand.is_recalled = False
        assert self.beside.look(top, following) is None
        return self.hand.is_recalled


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


REALTIME, NORMAL = JobClass.REALTIME, JobClass.NORMAL


def test_the_next_job_of_the_class_is_taken_where_it_is_of_another_model(scene: Scene) -> None:
    top = scene.run("a")
    assert scene.beside.takes(scene.job("b"), [top])
    assert not scene.beside.takes(None, [top])
    assert not scene.beside.takes(scene.job("b"), [])
    assert not scene.beside.takes(scene.job("a"), [top])
    assert not scene.beside.takes(scene.job("b"), [scene.run("b"), top])
    assert not scene.beside.takes(scene.job("b"), [scene.run("a", REALTIME)])
    assert not scene.beside.takes(scene.job("odd"), [top])
    assert not scene.beside.takes(scene.job("b"), [scene.run("odd")])


def test_what_is_short_or_not_known_waits_its_turn(scene: Scene) -> None:
    top = scene.run("a")
    assert not scene.beside.takes(scene.job("short", run_ns=LEAST_NS - 1), [top])
    assert not scene.beside.takes(scene.job("unknown", run_ns=None), [top])


def test_deadlines_must_bear_that_both_take_longer(scene: Scene) -> None:
    enough_ns = int(MOST_STRETCHED * RUN_NS)
    top = scene.run("a")
    assert scene.beside.takes(scene.job("b", deadline_ns=enough_ns), [top])
    assert not scene.beside.takes(scene.job("b", deadline_ns=enough_ns - 1), [top])
    assert not scene.beside.takes(scene.job("b"), [scene.run("a", deadline_ns=enough_ns - 1)])


@pytest.mark.parametrize(
    ("stretch", "other", "expected"),
    [(1.0, 1.0, True), (1.9, 1.0, True), (1.0, 1.9, True), (1.4, 1.4, True), (1.6, 1.6, False)],
)
def test_runs_that_need_all_processors_are_computed_one_after_the_other(
    scene: Scene, stretch: float, other: float, expected: bool
) -> None:
    scene.stretches = {"a": stretch, "b": other}
    assert scene.beside.takes(scene.job("b"), [scene.run("a")]) is expected


@pytest.mark.parametrize(("is_wanted", "threads"), [(False, 2), (True, 1)])
def test_without_a_second_processor_or_will_runs_are_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, is_wanted: bool, threads: int
) -> None:
    scene = Scene(monkeypatch, is_wanted=is_wanted, threads=threads)
    assert not scene.beside.takes(scene.job("b"), [scene.run("a")])


def test_neither_run_counts_as_alone_and_they_part_the_threads(scene: Scene) -> None:
    top, run = scene.run("a"), scene.run("b")
    assert scene.beside.threads(top) == 2
    scene.beside.begin(run, top)
    assert (top.is_disturbed, run.is_disturbed) == (True, True)
    assert scene.beside.threads(top) == 1
    assert scene.beside.runs == [run]
    assert not scene.beside.takes(scene.job("c"), [top])


def test_the_worker_begins_what_fits_beside_the_companions_run(scene: Scene) -> None:
    assert scene.beside.admits(scene.job("odd"))
    scene.beside.begin(scene.run("b"), scene.run("a"))
    assert scene.beside.admits(scene.job("c"))
    assert scene.beside.admits(scene.job("c", REALTIME))
    assert not scene.beside.admits(scene.job("b"))
    assert not scene.beside.admits(scene.job("odd"))
    assert not scene.beside.admits(scene.job("c", JobClass.BESTEFFORT))


def test_a_run_is_wanted_back_by_what_is_more_urgent_and_by_an_idle_worker(scene: Scene) -> None:
    run, top = scene.run("b"), scene.run("a")
    scene.beside.begin(run, top)
    assert not scene.is_recalled(top, None)
    assert not scene.is_recalled(top, scene.job("c"))
    assert not scene.is_recalled(top, scene.job("b"))
    assert not scene.is_recalled(top, scene.job("c", JobClass.BESTEFFORT))
    assert scene.is_recalled(top, scene.job("c", REALTIME))
    assert scene.is_recalled(scene.run("c", REALTIME), None)
    assert scene.is_recalled(None, None)
    assert scene.is_recalled(None, scene.job("b"))
    assert not scene.is_recalled(None, scene.job("c"))


def test_a_run_that_nobody_waits_for_is_wanted_back(scene: Scene) -> None:
    run, top = scene.run("b"), scene.run("a")
    scene.beside.begin(run, top)
    run.jobs[0].state = JobState.ENDED
    cast(Any, run).is_wanted = False
    assert scene.is_recalled(top, None)


def test_what_the_companion_has_stopped_is_handed_on(scene: Scene) -> None:
    run = scene.run("b")
    scene.beside.begin(run, scene.run("a"))
    scene.hand.stopped = Stopped(run, True, None)
    assert scene.beside.look(None, None) is scene.hand.stopped
    scene.hand.runs.clear()
    assert scene.beside.look(None, None) is None
