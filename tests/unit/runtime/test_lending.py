"""Small networks that frontends compute themselves, lent by a real runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brisk.frontend.connection import Connection
from brisk.frontend.lent import LentNetwork
from brisk.observer import Observer
from brisk.wire.place import RuntimePlace
from brisk.wire.records import ModelStatus, StateForm, TensorForm
from brisk.wire.role import Role
from unit.runtime.runtime_process import Answer, describe, end_processes, kill, opened, worker_of
from waiting import wait_until

SIZE, CHANNELS, CLASSES = 8, 16, 10


class AnyAnswer(Answer):
    """Keeps outputs as bytes: they are of several types."""

    def succeed(self, result, read) -> None:  # type: ignore[no-untyped-def]
        self.raw = {
            form.name: bytes(read(region))
            for form, region in zip(result.form.outputs, result.regions, strict=True)
        }
        self._note()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions, an average, a product; logits and the greatest one's number."""
    random = np.random.default_rng(3)
    shapes = {
        "first": (CHANNELS, 1, 3, 3),
        "second": (CHANNELS, CHANNELS, 3, 3),
        "last": (CHANNELS, CLASSES),
    }
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "last"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["digit"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, SIZE, SIZE])],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", CLASSES]),
            helper.make_tensor_value_info("digit", TensorProto.INT64, ["n", 1]),
        ],
        weights,
    )
    path = tmp_path_factory.mktemp("small") / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.fixture
def connection(place: RuntimePlace, network: Path) -> Iterator[Connection]:
    with opened(place, describe(network)) as connection:
        yield connection


def images(count: int) -> np.ndarray:
    shape = (count, 1, SIZE, SIZE)
    return np.random.default_rng(count).standard_normal(shape).astype(np.float32)


def by_worker(connection: Connection, value: np.ndarray) -> dict[str, bytes]:
    staged = connection.stage((TensorForm("x", "FP32", value.shape),), [value.nbytes])
    connection.memory(staged.regions[0])[:] = value.tobytes()
    answer = AnyAnswer()
    connection.submit(staged, ["logits", "digit"], "normal", None, answer)
    answer.wait()
    assert answer.error is None, answer.error
    return answer.raw


def lent(connection: Connection) -> LentNetwork:
    wait_until(lambda: connection.lent is not None, "a loan")
    network = connection.lent
    assert network is not None
    return network


def status_of(place: RuntimePlace) -> ModelStatus:
    with Observer(place, Role.FOREGROUND) as observer:
        (model,) = observer.status().models
    return model


def test_a_lent_network_answers_as_the_worker_does_bit_by_bit(connection: Connection) -> None:
    network = lent(connection)
    for count in (1, 2, 3, 8):
        computed = network.compute({"x": images(count)})
        assert computed is not None
        outputs, took_ns = computed
        assert outputs["logits"].shape == (count, CLASSES)
        assert (outputs["digit"].dtype, outputs["digit"].shape) == (np.int64, (count, 1))
        assert took_ns > 0
        given = {name: array.tobytes() for name, array in outputs.items()}
        assert given == by_worker(connection, images(count))


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"y": images(1)},
        {"x": images(1), "y": images(1)},
        {"x": images(1).astype(np.float64)},
        {"x": images(1)[..., :7]},
        {"x": images(1)[0]},
        {"x": np.float32(1).reshape(())},
        {"x": images(0)},
        {"x": images(1000)},
        {"x": images(2)[..., ::-1]},
    ],
    ids=("none", "other", "more", "type", "shape", "rank", "scalar", "empty", "many", "strided"),
)
def test_what_does_not_fit_is_left_to_the_worker(
    inputs: dict[str, np.ndarray], shared_loan: Connection
) -> None:
    assert lent(shared_loan).compute(inputs) is None


@pytest.fixture(scope="module")
def shared_loan(shared_place: RuntimePlace, network: Path) -> Iterator[Connection]:
    with opened(shared_place, describe(network)) as connection:
        yield connection
    end_processes(shared_place)


def test_the_state_says_who_computes_and_counts_all_answers(
    place: RuntimePlace, connection: Connection
) -> None:
    lent(connection)
    by_worker(connection, images(1))
    connection.count_answers(4)
    model = status_of(place)
    assert (model.lent, model.answered) == (1, 5)


def test_a_loan_is_recalled_while_somebody_records_requests(
    place: RuntimePlace, connection: Connection
) -> None:
    lent(connection)
    with Observer(place, Role.FOREGROUND) as observer:
        observer.begin_trace()
        wait_until(lambda: connection.lent is None, "the recall")
        by_worker(connection, images(1))
        assert any(span.lane == "layers" for span in observer.end_trace())
    lent(connection)


def test_a_worker_that_dies_takes_its_loans_along_and_the_next_one_lends(
    place: RuntimePlace, connection: Connection
) -> None:
    before = lent(connection)
    kill(worker_of(place))
    wait_until(lambda: connection.lent is not before, "the end of the loan")
    assert lent(connection) is not before
    assert before.compute({"x": images(1)}) is not None


@pytest.mark.parametrize("limit_us", ["0", "0.1"])
def test_nothing_is_lent_that_takes_longer_than_the_setting(
    limit_us: str, place: RuntimePlace, network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_LENT_US", limit_us)
    with opened(place, describe(network)) as connection:
        wait_until(lambda: status_of(place).is_settled, "kernels that stay")
        by_worker(connection, images(1))
        with Observer(place, Role.FOREGROUND) as observer:
            observer.begin_trace()
            observer.end_trace()  # after it, the worker lends what it can at once
        assert status_of(place).lent == 0
        assert connection.lent is None


def test_a_network_with_states_is_not_lent(place: RuntimePlace, network: Path) -> None:
    """Nobody but the worker knows the state that a request starts from."""
    state = StateForm("x", "logits", "FP32", (1, 1, SIZE, SIZE), "")
    with (
        opened(place, describe(network, states=(state,), max_sequences=1)) as stateful,
        opened(place, describe(network)) as plain,
    ):
        lent(plain)
        assert stateful.lent is None
