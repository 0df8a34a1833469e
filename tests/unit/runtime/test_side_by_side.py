"""Runs of two models side by side in one worker, and what may come between."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brisk.errors import BriskError, CancelledError
from brisk.frontend.connection import Connection
from brisk.wire.place import RuntimePlace
from unit.runtime.runtime_process import (
    Answer,
    describe,
    end_processes,
    kill,
    opened,
    submit,
    worker_of,
)
from waiting import wait_until

VALUES = 200_000
INPUT = np.full(VALUES, 0.01, np.float32)
FAILING = np.full(VALUES, VALUES + 1, np.float32)
STEPS = {"long": 16, "brief": 4, "other": 4}
"""Some 12 and 3 ms: a run of over 30 ms is not tried with one thread."""
TRIED_RUNS = 18
"""Enough for a network's number of threads to be chosen."""

Connections = dict[str, Connection]


def serial_model(path: Path, steps: int, *, is_picky: bool = False) -> Path:
    """Sums of all values before each, which a second thread is of little use for.

    ``is_picky``: then picks one value, and fails where the input's largest one is no place.
    """
    nodes, previous = [], "x"
    for step in range(steps):
        nodes.append(helper.make_node("CumSum", [previous, "axis"], [f"sums{step}"]))
        nodes.append(helper.make_node("Mul", [f"sums{step}", "scale"], [f"scaled{step}"]))
        previous = f"scaled{step}"
    if is_picky:
        nodes.append(helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0))
        nodes.append(helper.make_node("Cast", ["largest"], ["place"], to=TensorProto.INT64))
        nodes.append(helper.make_node("Gather", [previous, "place"], ["y"]))
    else:
        nodes.append(helper.make_node("Identity", [previous], ["y"]))
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [VALUES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [] if is_picky else [VALUES])],
        [
            numpy_helper.from_array(np.array(0, np.int64), "axis"),
            numpy_helper.from_array(np.array(1e-5, np.float32), "scale"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    picky = serial_model(directory / "picky.onnx", STEPS["brief"], is_picky=True)
    made = {name: serial_model(directory / f"{name}.onnx", steps) for name, steps in STEPS.items()}
    return {**made, "picky": picky}


@contextlib.contextmanager
def runtime(models: dict[str, Path], concurrent_runs: str) -> Iterator[RuntimePlace]:
    parent = Path(tempfile.mkdtemp(prefix="brisk-"))
    place = RuntimePlace(parent / "runtime", "cpu")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BRISK_ENGINE", "brisk")  # only its threads are tried, one and all
        environment.setenv("BRISK_THREADS", "2")
        environment.setenv("BRISK_CONCURRENT_RUNS", concurrent_runs)
        environment.setenv("BRISK_ARTEFACTS", "off")
        with opened(place, describe(models["long"])):
            yield place
    end_processes(place)
    shutil.rmtree(parent)


@contextlib.contextmanager
def connected(place: RuntimePlace, models: dict[str, Path]) -> Iterator[Connections]:
    with contextlib.ExitStack() as stack:
        found = {
            name: stack.enter_context(opened(place, describe(path)))
            for name, path in models.items()
        }
        for connection in found.values():
            for _ in range(TRIED_RUNS):
                submit(connection, INPUT)[1].output()
        yield found


@pytest.fixture(scope="module")
def place(models: dict[str, Path]) -> Iterator[RuntimePlace]:
    with runtime(models, "2") as made:
        yield made


@pytest.fixture
def connections(place: RuntimePlace, models: dict[str, Path]) -> Iterator[Connections]:
    """To models whose kernels are settled, and whose runs' times are known."""
    with connected(place, models) as found:
        wait_until(lambda: is_beside(found), "a run beside another one")
        yield found


def is_beside(connections: Connections) -> bool:
    """Whether a brief run that comes behind a long one is computed while that is."""
    long, brief = (span_ns(answer) for answer in pair(connections))
    return max(long[0], brief[0]) < min(long[1], brief[1])


def span_ns(answer: Answer) -> tuple[int, int]:
    """From its first layer to its last."""
    answer.output()
    result = answer.result
    assert result is not None
    return result.started_ns, result.started_ns + result.execution_ns


def pair(connections: Connections, other: str = "brief") -> tuple[Answer, Answer]:
    return (
        submit(connections["long"], INPUT)[1],
        submit(connections[other], INPUT)[1],
    )


def assert_right(answer: Answer, expected: np.ndarray) -> None:
    np.testing.assert_allclose(answer.output(), expected, rtol=1e-4, atol=1e-6)
    assert answer.times == 1


def alone(connections: Connections) -> dict[str, np.ndarray]:
    return {name: submit(connections[name], INPUT)[1].output() for name in connections}


def test_answers_are_those_of_runs_alone(connections: Connections) -> None:
    expected = alone(connections)
    for other in ("brief", "picky", "other"):
        long, second = pair(connections, other)
        assert_right(second, expected[other])
        assert_right(long, expected["long"])


def test_one_at_a_time_where_that_is_wanted(models: dict[str, Path]) -> None:
    few = {name: models[name] for name in ("long", "brief")}
    with runtime(models, "1") as place, connected(place, few) as connections:
        for _ in range(5):
            assert not is_beside(connections)


def test_real_time_work_comes_before_both_and_they_go_on(connections: Connections) -> None:
    expected = alone(connections)

    def comes_first(urgent: str) -> bool:
        long, brief = pair(connections)
        first = submit(connections[urgent], INPUT, "realtime")[1]
        assert_right(first, expected[urgent])
        came_first = not long.has_come
        assert_right(brief, expected["brief"])
        assert_right(long, expected["long"])
        return came_first

    for urgent in ("other", "brief"):  # the latter is what the companion computes, too
        wait_until(lambda urgent=urgent: comes_first(urgent), "an urgent answer before a long one")


def test_a_failing_run_is_answered_with_its_error_and_the_other_one_goes_on(
    connections: Connections,
) -> None:
    expected = alone(connections)
    long = submit(connections["long"], INPUT)[1]
    failing = submit(connections["picky"], FAILING)[1].wait()
    assert isinstance(failing.error, BriskError)
    assert "Gather" in str(failing.error)
    assert_right(long, expected["long"])
    assert_right(submit(connections["picky"], INPUT)[1], expected["picky"])


def test_a_run_that_nobody_waits_for_any_more_makes_room(connections: Connections) -> None:
    expected = alone(connections)
    long = submit(connections["long"], INPUT)[1]
    number, cancelled = submit(connections["brief"], INPUT)
    connections["brief"].cancel(number)
    assert isinstance(cancelled.wait().error, CancelledError)
    assert_right(submit(connections["other"], INPUT)[1], expected["other"])
    assert_right(long, expected["long"])


def test_both_survive_their_worker(connections: Connections, place: RuntimePlace) -> None:
    expected = alone(connections)
    long, brief = pair(connections)
    kill(worker_of(place))
    assert_right(brief, expected["brief"])
    assert_right(long, expected["long"])


def test_whatever_comes_is_answered_once_and_rightly(connections: Connections) -> None:
    expected = alone(connections)
    chance = random.Random(7)
    sent: list[tuple[str, Answer]] = []
    for _ in range(60):
        name = chance.choice(("brief", "other", "picky", "long"))
        job_class = chance.choice(("realtime", "normal", "normal"))
        number, answer = submit(connections[name], INPUT, job_class)
        sent.append((name, answer))
        if chance.random() < 0.1:
            connections[name].cancel(number)
        if chance.random() < 0.3:
            chance.choice(sent)[1].wait()
    for name, answer in sent:
        if isinstance(answer.wait().error, CancelledError):
            assert answer.times == 1
        else:
            assert_right(answer, expected[name])
