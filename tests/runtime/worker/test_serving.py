"""A connection and a real runtime: requests, loads, cancellations, time-outs, bounds."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from brisk.errors import (
    CancelledError,
    InvalidModelError,
    InvalidRequestError,
    ProtocolError,
    UnavailableError,
)
from brisk.protocol.records import TensorForm
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from support.models.segment_models import info, save
from support.runtime.runtime_process import (
    SLOW_INPUT,
    Answer,
    describe,
    infer,
    opened,
    submit,
    worker_of,
)
from support.waiting import TIMED, wait_until

pytestmark = pytest.mark.timing


def rows(count: int) -> np.ndarray:
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4)


def test_an_answer_is_the_model_s(shared_place: RuntimePaths, quick: Path) -> None:
    with opened(shared_place, describe(quick)) as connection:
        for count in (1, 7, 0, 300_000):
            np.testing.assert_array_equal(infer(connection, rows(count)), -rows(count))


def test_an_answer_says_how_long_it_took(shared_place: RuntimePaths, quick: Path) -> None:
    with opened(shared_place, describe(quick)) as connection:
        result = submit(connection, rows(1))[1].wait().result
    assert result is not None
    assert 0 < result.execution_ns < 10**10
    assert 0 <= result.queue_ns < 10**10
    assert 0 < time.monotonic_ns() - result.started_ns < 10**10


def test_many_requests_at_once_are_answered_once_each(
    shared_place: RuntimePaths, quick: Path
) -> None:
    with opened(shared_place, describe(quick, max_queue_size=1000)) as connection:
        sent = [submit(connection, rows(count))[1] for count in range(300)]
        for count, answer in enumerate(sent):
            np.testing.assert_array_equal(answer.output(), -rows(count))
        assert {answer.times for answer in sent} == {1}
        assert connection.statistics()["pending"] == 0


def test_memory_of_answered_requests_is_used_again(
    shared_place: RuntimePaths, quick: Path
) -> None:
    with opened(shared_place, describe(quick)) as connection:
        before = connection.statistics()
        for _ in range(50):
            infer(connection, rows(300_000))
        after = connection.statistics()
    assert after["used_bytes"] == before["used_bytes"]
    assert after["slabs"] <= 2


def test_several_connections_share_one_session(shared_place: RuntimePaths, slow: Path) -> None:
    with opened(shared_place, describe(slow)):
        second = RuntimeClient(shared_place, describe(slow), lambda level, text: None)
        assert second.open() == 0, "it was loaded already"
        second.close()


def test_joined_requests_get_their_own_rows_back(
    shared_place: RuntimePaths, quick: Path, slow: Path
) -> None:
    batched = describe(quick, max_batch_size=8, batching=True)
    with opened(shared_place, describe(slow)) as busy, opened(shared_place, batched) as connection:
        _, holding = submit(busy, SLOW_INPUT)
        sent = [submit(connection, rows(count) + count)[1] for count in (1, 3, 2, 5, 8, 9, 1)]
        for count, answer in zip((1, 3, 2, 5, 8, 9, 1), sent, strict=True):
            np.testing.assert_array_equal(answer.output(), -(rows(count) + count))
        holding.output()


def test_a_missing_model_is_named_and_others_go_on(
    shared_place: RuntimePaths, quick: Path, tmp_path: Path
) -> None:
    missing = RuntimeClient(
        shared_place, describe(tmp_path / "missing.onnx"), lambda level, text: None
    )
    with opened(shared_place, describe(quick)) as connection:
        worker = worker_of(shared_place)
        with pytest.raises(InvalidModelError, match=r"missing\.onnx"):
            missing.open()
        np.testing.assert_array_equal(infer(connection, rows(1)), -rows(1))
        assert worker_of(shared_place) == worker


@pytest.mark.parametrize("content", [b"", b"no model at all", b"\x08\x08\x3a\xff\x01"])
def test_a_broken_model_is_refused_and_the_worker_lives(
    shared_place: RuntimePaths, tmp_path: Path, content: bytes
) -> None:
    worker = worker_of(shared_place)
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidModelError):
        RuntimeClient(shared_place, describe(path), lambda level, text: None).open()
    assert worker_of(shared_place) == worker


def test_a_refusal_longer_than_a_record_is_cut_not_fatal(
    shared_place: RuntimePaths, tmp_path: Path
) -> None:
    """A message that names an absurdly named operator must not end the worker."""
    worker = worker_of(shared_place)
    node = onnx.helper.make_node("Absurd" * 50_000, ["x"], ["y"])
    model = save(tmp_path / "absurd.onnx", [node], [info("x", 1)], [info("y", 1)])
    description = describe(model)
    with pytest.raises(InvalidModelError, match="Absurd"):
        RuntimeClient(shared_place, description, lambda level, text: None).open()
    assert worker_of(shared_place) == worker


def test_a_request_that_does_not_fit_the_model_is_refused(
    shared_place: RuntimePaths, quick: Path
) -> None:
    with opened(shared_place, describe(quick)) as connection:
        error = submit(connection, np.ones((2, 5), np.float32))[1].wait().error
        assert isinstance(error, InvalidRequestError)
        np.testing.assert_array_equal(infer(connection, rows(1)), -rows(1))


def test_a_request_too_long_for_a_record_is_refused_alone(
    shared_place: RuntimePaths, quick: Path
) -> None:
    with opened(shared_place, describe(quick)) as connection:
        used = connection.statistics()["used_bytes"]
        staged = connection.stage((TensorForm("x" * 200_000, "FP32", (1, 4)),), [16])
        answer = Answer()
        connection.submit(staged, ["y"], "normal", None, answer)
        assert isinstance(answer.wait().error, ProtocolError)
        assert answer.times == 1
        np.testing.assert_array_equal(infer(connection, rows(1)), -rows(1))
        assert connection.statistics()["used_bytes"] == used


def test_what_is_wrong_with_a_request_names_the_entry_and_not_its_graph(
    shared_place: RuntimePaths, quick: Path
) -> None:
    entry = describe(quick, name="my entry")  # the graph is called "test"
    with opened(shared_place, entry) as connection:
        for tensor, output, words in (
            ("x", "q", "there is no output ['q']; the outputs are ['y']"),
            ("q", "y", "input 'x' is missing"),
        ):
            staged, answer = (
                connection.stage((TensorForm(tensor, "FP32", (1, 4)),), [16]),
                Answer(),
            )
            connection.submit(staged, [output], "normal", None, answer)
            error = answer.wait().error
            assert isinstance(error, InvalidRequestError)
            assert str(error) == f"model 'my entry': {words}"


def test_an_unknown_class_is_refused(shared_place: RuntimePaths, quick: Path) -> None:
    with opened(shared_place, describe(quick)) as connection:
        error = submit(connection, rows(1), job_class="fast")[1].wait().error
    assert isinstance(error, InvalidRequestError)
    assert "unknown class 'fast'" in str(error)


def test_a_running_request_can_be_cancelled(shared_place: RuntimePaths, slow: Path) -> None:
    with opened(shared_place, describe(slow)) as connection:
        number, answer = submit(connection, SLOW_INPUT)
        time.sleep(0.05)
        asked_s = time.monotonic()
        connection.cancel(number)
        assert isinstance(answer.wait().error, CancelledError)
        with TIMED:
            assert time.monotonic() - asked_s < 0.4
        connection.cancel(number)
        connection.cancel(10**9)
        assert answer.times == 1


def test_a_waiting_request_can_be_cancelled(shared_place: RuntimePaths, slow: Path) -> None:
    with opened(shared_place, describe(slow)) as connection:
        _, first = submit(connection, SLOW_INPUT)
        number, second = submit(connection, SLOW_INPUT)
        connection.cancel(number)
        assert isinstance(second.wait().error, CancelledError)
        assert not first.has_come
        first.output()


def test_a_request_whose_time_runs_out_while_it_waits_is_answered_in_time(
    shared_place: RuntimePaths, slow: Path
) -> None:
    with opened(shared_place, describe(slow)) as connection:
        _, first = submit(connection, SLOW_INPUT)
        sent_s = time.monotonic()
        deadline_ns = time.monotonic_ns() + 50_000_000
        _, second = submit(connection, SLOW_INPUT, deadline_ns=deadline_ns)
        error = second.wait().error
        assert isinstance(error, UnavailableError)
        assert "time-out ran out" in str(error)
        with TIMED:
            assert 0.05 <= time.monotonic() - sent_s < 0.5
        first.output()


def test_a_request_that_comes_too_late_is_not_run(shared_place: RuntimePaths, quick: Path) -> None:
    with opened(shared_place, describe(quick)) as connection:
        error = submit(connection, rows(1), deadline_ns=time.monotonic_ns() - 1)[1].wait().error
    assert isinstance(error, UnavailableError)


def test_closing_answers_what_is_in_flight(shared_place: RuntimePaths, slow: Path) -> None:
    with opened(shared_place, describe(slow)) as connection:
        sent = [submit(connection, SLOW_INPUT)[1] for _ in range(3)]
    for answer in sent:
        error = answer.wait().error
        assert isinstance(error, UnavailableError)
        assert "is being unloaded" in str(error)
        assert answer.times == 1


def test_a_worker_keeps_nothing_of_connections_that_have_gone(
    shared_place: RuntimePaths, quick: Path, slow: Path
) -> None:
    worker = worker_of(shared_place)

    def held() -> int:
        return len(list(Path(f"/proc/{worker}/fd").iterdir()))

    with opened(shared_place, describe(quick)) as connection:
        infer(connection, rows(1))
    time.sleep(0.1)
    before = held()
    for _ in range(5):
        with opened(shared_place, describe(quick)) as connection:
            infer(connection, rows(300_000))
            submit(connection, rows(300_000))
    wait_until(lambda: held() <= before, f"{before} descriptors instead of {held()}")
