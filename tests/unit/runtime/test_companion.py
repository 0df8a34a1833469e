"""The thread that computes a second run: to the end, to a boundary, or to an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from brisk.native.run import SHARING
from brisk.runtime.batch import Run
from brisk.runtime.companion import Companion, Stopped
from waiting import wait_until


class Layers:
    """A frame of ``count`` layers, each of which does ``work``."""

    def __init__(self, count: int, work: Callable[[], object] = lambda: None) -> None:
        self.count = count
        self.done = 0
        self.threads: list[int] = []
        self._work = work

    def step(self) -> bool:
        self._work()
        self.threads.append(torch.get_num_threads())
        self.done += 1
        return self.done == self.count


def run_of(layers: Layers) -> Run:
    return cast(Run, SimpleNamespace(frame=layers))


@pytest.fixture
def woken() -> threading.Event:
    return threading.Event()


@pytest.fixture
def companion(woken: threading.Event) -> Iterator[Companion]:
    yield Companion(1, woken.set)
    assert not SHARING.is_on


def stopped(companion: Companion, woken: threading.Event) -> Stopped:
    assert woken.wait(10)
    woken.clear()
    found = companion.take()
    assert found is not None
    assert companion.take() is None
    assert not companion.runs
    return found


def test_runs_are_computed_one_after_the_other_with_the_companions_threads(
    companion: Companion, woken: threading.Event
) -> None:
    for count in (3, 1):
        run = run_of(layers := Layers(count))
        companion.begin(run)
        assert companion.runs == [run]
        assert SHARING.is_on
        assert stopped(companion, woken) == Stopped(run, True, None)
        assert layers.threads == [1] * count
    assert torch.get_num_threads() > 0


def test_a_run_that_is_recalled_stops_at_a_boundary_and_can_be_gone_on_with(
    companion: Companion, woken: threading.Event
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert may_end.wait(10)

    run = run_of(layers := Layers(3, work))
    companion.begin(run)
    assert begun.wait(10)
    companion.recall()
    assert companion.take() is None
    may_end.set()
    assert stopped(companion, woken) == Stopped(run, False, None)
    assert layers.done == 1
    companion.begin(run)
    assert stopped(companion, woken).is_finished
    assert layers.done == 3


def test_what_a_layer_raises_is_told_and_the_next_run_is_computed(
    companion: Companion, woken: threading.Event
) -> None:
    def work() -> None:
        raise ValueError("no such row")

    companion.begin(run_of(Layers(2, work)))
    found = stopped(companion, woken)
    assert not found.is_finished
    assert str(found.error) == "no such row"
    companion.begin(run_of(Layers(1)))
    assert stopped(companion, woken).is_finished


def test_nothing_of_a_run_lives_on_in_the_thread(
    companion: Companion, woken: threading.Event
) -> None:
    gone = threading.Event()

    class Counted(Layers):
        def __del__(self) -> None:
            gone.set()

    companion.begin(run_of(Counted(1)))
    stopped(companion, woken)
    wait_until(gone.is_set, "the end of the frame")
