"""The number of threads on which a stub computes its model, by what its runs take."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from brisk.errors import ArtefactError
from brisk.protocol.records import ComputeInStub, LoadModel
from brisk.stub.local import local_program
from brisk.stub.local.local_program import (
    FIRST_REST_NS,
    LONGEST_BATCH_NS,
    LONGEST_NS,
    LONGEST_REST_NS,
    MEASURED,
    MOST_ROWS,
    SHORT_NS,
    WINDOW,
    LocalProgram,
    LocalPrograms,
)
from support.waiting import wait_until

MODEL = LoadModel("net", 1, "/m.onnx", 0, False, 8, "normal")
MS = 1_000_000


class Model:
    """A model whose runs take what they are said to, at a time that passes as they do."""

    def __init__(self, row_ns: int, threads: int = 2) -> None:
        self.now_ns = 1_000 * MS
        self.opened: list[int] = []
        self.refused = False
        self._offered = row_ns, threads

    def open(self, model: LoadModel, prepared: str, threads: int) -> LocalProgram:
        if self.refused:
            raise ArtefactError("it has gone")
        self.opened.append(threads)
        program: Any = SimpleNamespace()
        return LocalProgram(threads, program, lambda *_: [np.zeros(1)], MOST_ROWS)

    def begin(self) -> None:
        self.programs = LocalPrograms(MODEL, ComputeInStub(1, "/prepared", *self._offered))

    @property
    def threads(self) -> int:
        return self.programs.current.threads

    def run(self, times: int, taken: Callable[[int], tuple[int, int]]) -> None:
        """Run as often, and wait for what is opened. ``taken``: from the threads to the time of a
        run and its processor time."""
        for _ in range(times):
            taken_ns, computed_ns = taken(self.threads)
            self.now_ns += taken_ns
            self.programs.learn(self.programs.current, 1, taken_ns, computed_ns)
            if self.programs._is_opening:
                wait_until(
                    lambda: self.programs._opened is not None or self.programs._is_settled,
                    "a program",
                )


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Model]:
    def made(row_ns: int, threads: int = 2) -> Model:
        model = Model(row_ns, threads)
        monkeypatch.setattr(local_program, "open_program", model.open)
        monkeypatch.setattr(local_program.time, "monotonic_ns", lambda: model.now_ns)
        model.begin()
        return model

    return made


def alone(threads: int) -> tuple[int, int]:
    taken_ns = 6 * MS // threads
    return taken_ns, taken_ns


def beside_others(threads: int) -> tuple[int, int]:
    return 12 * MS, 6 * MS // threads


def test_a_larger_model_is_computed_on_several_threads_from_the_start(
    make: Callable[..., Model],
) -> None:
    model = make(3 * MS)
    model.run(5 * WINDOW, alone)
    assert (model.threads, model.opened) == (2, [2])


def test_runs_that_others_take_processors_from_give_up_threads_and_take_them_again(
    make: Callable[..., Model],
) -> None:
    model = make(3 * MS)
    model.run(WINDOW + 1, beside_others)
    assert model.threads == 1
    model.run(FIRST_REST_NS // (12 * MS), beside_others)
    model.run(WINDOW, beside_others)
    assert model.threads == 1, "others still take them"
    model.run(2 * WINDOW, alone)
    assert (model.threads, model.opened) == (2, [2, 1])


def test_a_run_that_stalls_changes_nothing(make: Callable[..., Model]) -> None:
    model = make(3 * MS)
    for _ in range(20):
        model.run(WINDOW - 1, alone)
        model.run(1, lambda threads: (200 * MS, 3 * MS))
    assert (model.threads, model.opened) == (2, [2])


def test_each_try_of_more_threads_in_vain_doubles_the_time_to_the_next(
    make: Callable[..., Model],
) -> None:
    model = make(3 * MS)
    changes = []

    def crowded_on_two(threads: int) -> tuple[int, int]:
        if not changes or changes[-1][0] != threads:
            changes.append((threads, model.now_ns))
        return alone(1) if threads == 1 else (12 * MS, 3 * MS)

    model.run(8_000, crowded_on_two)
    rises = [at_ns for threads, at_ns in changes if threads == 2][1:]
    between = [late - early for early, late in pairwise(rises)]
    assert len(between) > 4
    assert between[0] < 2.5 * FIRST_REST_NS
    assert between[-1] > 0.9 * LONGEST_REST_NS
    assert between == sorted(between)


def test_threads_are_halved_until_runs_have_their_processors(make: Callable[..., Model]) -> None:
    model = make(3 * MS, threads=8)

    def has_two_processors(threads: int) -> tuple[int, int]:
        return 12 * MS // min(threads, 2), 12 * MS // threads

    model.run(4 * WINDOW, has_two_processors)
    assert (model.threads, model.opened) == (2, [8, 4, 2])
    assert sorted(model.programs._programs) == [2, 4], "no more than two are kept"


@pytest.mark.parametrize(("several_ns", "threads"), [(MS, 2), (5 * MS // 4, 1)])
def test_a_small_model_is_computed_on_several_threads_only_if_that_gains(
    make: Callable[..., Model], several_ns: int, threads: int
) -> None:
    model = make(9 * MS // 10)

    def small(threads: int) -> tuple[int, int]:
        return (several_ns, several_ns) if threads > 1 else (3 * MS // 2, 3 * MS // 2)

    assert model.threads == 1
    model.run(MEASURED + 1, small)
    assert model.threads == 2, "it is tried, since the worker takes much less"
    model.run(MEASURED, small)
    assert model.threads == threads
    model.run(20 * MEASURED, small)
    assert (model.threads, model.opened) == (threads, [1, 2]), "it is tried once"
    longest_ns = LONGEST_NS if threads == 2 else LONGEST_BATCH_NS
    assert model.programs.current.longest_ns == longest_ns


def test_a_model_that_its_worker_computes_no_faster_is_not_tried_on_several_threads(
    make: Callable[..., Model],
) -> None:
    model = make(MS)
    model.run(20 * MEASURED, lambda threads: (11 * MS // 10, 11 * MS // 10))
    assert model.opened == [1]
    assert not model.programs.current.is_watched


def test_with_one_thread_in_the_worker_there_is_one_here(make: Callable[..., Model]) -> None:
    model = make(3 * MS, threads=1)
    model.run(5 * WINDOW, beside_others)
    assert model.opened == [1]
    assert model.programs.current.takes(1)


def test_what_cannot_be_opened_on_fewer_threads_goes_on(make: Callable[..., Model]) -> None:
    model = make(3 * MS)
    model.refused = True
    model.run(5 * WINDOW, beside_others)
    assert (model.threads, model.opened) == (2, [2])
    assert not model.programs.current.is_watched


def test_threads_are_not_given_up_where_a_run_would_take_too_long(
    make: Callable[..., Model],
) -> None:
    model = make(20 * MS, threads=8)
    model.run(10 * WINDOW, lambda threads: (160 * MS, 160 * MS // threads))
    assert (model.threads, model.opened) == (4, [8, 4])
    assert model.programs.current.takes(1)


def test_what_others_delay_is_not_expected_to_take_longer(make: Callable[..., Model]) -> None:
    model = make(SHORT_NS + MS)
    model.run(100, lambda threads: (80 * MS, SHORT_NS + MS))
    assert model.programs.current.takes(1)
    model.run(100, lambda threads: (80 * MS, 80 * MS))
    assert not model.programs.current.takes(1)
