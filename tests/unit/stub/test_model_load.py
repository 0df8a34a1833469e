"""A model's load is blamed for the workers that die of it, and for no others."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from brisk.errors import InternalError, InvalidModelError, UnavailableError
from brisk.protocol.records import LoadModel, ModelLoaded
from brisk.protocol.shared_memory import Arena, reset_mark, set_mark
from brisk.stub.runtime_client.pending import MAX_LOAD_STRIKES, RETRY_S, ModelLoad

MODEL = LoadModel("resnet", 3, "/m.onnx", 0, False, 8, "normal")


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena()
    yield made
    made.close()


@pytest.fixture
def load(arena: Arena) -> ModelLoad:
    return ModelLoad(MODEL, arena)


def begin_in_worker(load: ModelLoad, arena: Arena) -> None:
    set_mark(arena.memory(load.begin().mark))


def test_a_load_that_ends_every_worker_is_given_up_by_name(load: ModelLoad, arena: Arena) -> None:
    for _ in range(MAX_LOAD_STRIKES - 1):
        begin_in_worker(load, arena)
        assert load.strike() is None
    begin_in_worker(load, arena)
    error = load.strike()
    assert isinstance(error, InternalError)
    assert f"'resnet' version 3 ended {MAX_LOAD_STRIKES} workers" in str(error)


def test_one_death_is_blamed_once_however_often_a_restart_fails(
    load: ModelLoad, arena: Arena
) -> None:
    begin_in_worker(load, arena)
    assert [load.strike() for _ in range(10)] == [None] * 10


def test_a_load_that_had_not_begun_is_not_blamed(load: ModelLoad) -> None:
    for _ in range(10):
        load.begin()
        assert load.strike() is None


def test_a_loaded_model_is_not_blamed_and_starts_afresh(load: ModelLoad, arena: Arena) -> None:
    for _ in range(4):
        begin_in_worker(load, arena)
        assert load.strike() is None
        record = load.begin()
        load.settle(ModelLoaded(0, 7))
        reset_mark(arena.memory(record.mark))  # as the worker does after the last segment
        assert load.strike() is None
    assert load.wait() == 7


def test_a_model_whose_segments_still_load_is_blamed_though_it_is_ready(
    load: ModelLoad, arena: Arena
) -> None:
    for _ in range(MAX_LOAD_STRIKES - 1):
        begin_in_worker(load, arena)
        load.settle(ModelLoaded(0, 7))
        assert load.strike() is None
    begin_in_worker(load, arena)
    load.settle(ModelLoaded(0, 7))
    assert isinstance(load.strike(), InternalError)


def test_a_failed_load_raises_its_error_and_refuses_requests(load: ModelLoad) -> None:
    error = InvalidModelError("no")
    assert (load.failure, load.is_settled) == (None, False)
    load.settle(error)
    assert load.failure is error
    with pytest.raises(InvalidModelError, match="no"):
        load.wait()
    assert load.is_given_up
    assert not load.is_deferred


def test_a_model_that_was_served_is_tried_again_a_second_after_a_failed_load(
    load: ModelLoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    load.settle(ModelLoaded(0, 7))
    load.begin()
    error = load.settle(InvalidModelError("the file ends too early"))
    assert isinstance(error, UnavailableError), "it is no fault of the request"
    assert "'resnet' version 3 cannot be loaded now: the file ends too early" in str(error)
    assert load.failure is error
    now_s[0] += RETRY_S
    assert load.failure is None
    assert load.is_deferred
    load.begin()
    assert load.settle(ModelLoaded(0, 7)) is None
    assert (load.failure, load.is_deferred) == (None, False)


def test_a_load_that_was_short_of_memory_is_tried_by_the_next_request(load: ModelLoad) -> None:
    load.settle(ModelLoaded(0, 7))
    load.begin()
    short = UnavailableError("not enough memory")
    assert load.settle(short) is short
    assert (load.failure, load.is_deferred) == (None, True)


def test_a_model_that_ended_workers_is_not_tried_again(load: ModelLoad) -> None:
    load.settle(ModelLoaded(0, 7))
    error = InternalError("it ended 3 workers")
    assert load.settle(error, is_final=True) is error
    assert load.failure is error
    assert load.is_given_up
