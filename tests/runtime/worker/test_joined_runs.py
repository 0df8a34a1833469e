"""Requests that run together: one that fails takes no other with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.errors import InvalidRequestError
from brisk.protocol.records import TensorForm
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from support.runtime.runtime_process import SLOW_INPUT, Answer, describe, opened, submit

pytestmark = [pytest.mark.timing, pytest.mark.beside]


def lookup_model(path: Path) -> Path:
    """y = table[x] for a batch of indices; one out of range fails when it runs."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [4], [0.0, 10.0, 20.0, 30.0])
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["index"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "index"], ["y"]),
        ],
        "lookup",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
        [table],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


@pytest.fixture
def joined(
    shared_place: RuntimePaths, slow: Path, tmp_path: Path
) -> Iterator[tuple[RuntimeClient, Callable[[], None]]]:
    """A connection whose requests wait, to be joined, until they are released."""
    lookup = describe(lookup_model(tmp_path / "lookup.onnx"), max_batch_size=8, batching=True)
    with opened(shared_place, describe(slow)) as blocker, opened(shared_place, lookup) as made:
        number, _ = submit(blocker, SLOW_INPUT)
        yield made, lambda: blocker.cancel(number)


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
