"""Requests that run together: one that fails takes no other with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from brisk.errors import InvalidRequestError
from brisk.protocol.records import TensorForm
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.protocol.shared_memory import mark_is_set
from brisk.stub.runtime_client.client import RuntimeClient
from support.models.segment_models import info, save
from support.runtime.runtime_process import (
    SLOW_INPUT,
    Answer,
    describe,
    kill,
    opened,
    submit,
    submit_marked,
    worker_of,
)
from support.waiting import wait_until

pytestmark = [pytest.mark.timing, pytest.mark.beside]


def lookup_model(path: Path) -> Path:
    """y = table[x] for a batch of indices; one out of range fails when it runs."""
    table = np.array([0.0, 10.0, 20.0, 30.0], np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "index"], ["y"]),
    ]
    return save(path, nodes, [info("x", "n", 1)], [info("y", "n", 1)], {"table": table})


@pytest.fixture
def joined(
    shared_place: RuntimePaths, slow: Path, tmp_path: Path
) -> Iterator[tuple[RuntimeClient, Callable[[], None]]]:
    """A connection whose requests wait, to be joined, until they are released."""
    lookup = describe(lookup_model(tmp_path / "lookup.onnx"), max_batch_size=8, batching=True)
    with opened(shared_place, describe(slow)) as blocker, opened(shared_place, lookup) as made:
        number, _ = submit(blocker, SLOW_INPUT)
        yield made, lambda: blocker.cancel(number)


def rounds_model(path: Path) -> Path:
    """y = x after as many rounds of a Loop as the greatest value of the batch says."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["goes"]),
            helper.make_node("Identity", ["value"], ["next"]),
        ],
        "body",
        [
            info("round", kind=TensorProto.INT64),
            info("go", kind=TensorProto.BOOL),
            info("value", "n", 1),
        ],
        [info("goes", kind=TensorProto.BOOL), info("next", "n", 1)],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["rounds"], to=TensorProto.INT64),
        helper.make_node("Loop", ["rounds", "", "x"], ["y"], body=body),
    ]
    return save(path, nodes, [info("x", "n", 1)], [info("y", "n", 1)])


def test_a_request_that_ends_two_workers_takes_none_that_ran_with_it_along(
    shared_place: RuntimePaths, slow: Path, tmp_path: Path
) -> None:
    model = describe(rounds_model(tmp_path / "rounds.onnx"), max_batch_size=8, batching=True)
    with (
        opened(shared_place, describe(slow)) as blocker,
        opened(shared_place, model) as connection,
    ):
        number, _ = submit(blocker, SLOW_INPUT)
        sent = []
        for rounds in (2.0**62, 2.0, 3.0):
            _, answer, mark = submit_marked(connection, np.full((1, 1), rounds, np.float32))
            sent.append((mark, answer))
        blocker.cancel(number)
        (endless, first), *others = sent
        wait_until(lambda: all(mark_is_set(mark) for mark, _ in sent), "that all run as one")
        kill(worker_of(shared_place))
        wait_until(lambda: not mark_is_set(endless), "a new worker")
        wait_until(lambda: mark_is_set(endless), "the run of the one that does not end")
        assert not any(mark_is_set(mark) for mark, answer in others if not answer.has_come)
        kill(worker_of(shared_place))
        assert [answer.output().item() for _, answer in others] == [2.0, 3.0]
        assert "was running when 2 workers died" in str(first.wait().error)


def test_the_bad_request_of_a_joined_run_fails_alone(
    joined: tuple[RuntimeClient, Callable[[], None]],
) -> None:
    connection, release = joined
    answers: list[Answer] = [
        submit(connection, np.full((1, 1), index, np.float32))[1] for index in (1, 99, 2, 3)
    ]
    release()
    assert [answers[position].output().item() for position in (0, 2, 3)] == [10.0, 20.0, 30.0]
    assert isinstance(answers[1].wait().error, InvalidRequestError)


def test_a_request_that_cannot_begin_takes_no_other_with_it(
    joined: tuple[RuntimeClient, Callable[[], None]],
) -> None:
    connection, release = joined
    first = submit(connection, np.full((1, 1), 1, np.float32))[1]
    staged, bad = connection.stage((TensorForm("x", "FP32", (1, 1)),), [8]), Answer()
    connection.submit(staged, ["y"], "normal", None, bad)
    others = [submit(connection, np.full((1, 1), index, np.float32))[1] for index in (2, 3)]
    release()
    assert [answer.output().item() for answer in (first, *others)] == [10.0, 20.0, 30.0]
    error = bad.wait().error
    assert isinstance(error, InvalidRequestError)
    assert "takes 4 bytes, got 8" in str(error)
