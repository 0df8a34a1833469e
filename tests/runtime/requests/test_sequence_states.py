"""States of sequences in a real worker: order, what leaves them as they were, when they end."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk.errors import CancelledError, InvalidModelError, InvalidRequestError, UnavailableError
from brisk.protocol.records import LoadModel, Region, SequenceStep, StateForm, TensorForm
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.runtime.models.sequences import IDLE_MARGIN_NS, Sequences
from brisk.scheduling.job import Job
from brisk.scheduling.job_class import JobClass
from brisk.stub.runtime_client.client import RuntimeClient
from support.models.segment_models import info, save
from support.runtime.runtime_process import (
    SLOW_INPUT,
    Answer,
    describe,
    kill,
    opened,
    slow_model,
    submit,
    submit_and_see_begin,
    worker_of,
)

SUM = StateForm("sum", "next", "FP32", (1, 2), "")
MARGIN_NS = 60_000_000_000


@pytest.fixture
def accumulator(tmp_path: Path) -> Path:
    """``y = next = x + sum``."""
    nodes = [
        helper.make_node("Add", ["x", "sum"], ["y"]),
        helper.make_node("Identity", ["y"], ["next"]),
    ]
    inputs = [info("x", "n", 2), info("sum", "n", 2)]
    outputs = [info("y", "n", 2), info("next", "n", 2)]
    return save(tmp_path / "accumulator.onnx", nodes, inputs, outputs)


def stateful(path: Path, **changes: object) -> LoadModel:
    fields = {
        "states": (SUM,),
        "max_sequences": 4,
        "sequence_idle_ns": MARGIN_NS,
        "max_batch_size": 8,
        "batching": True,
    }
    return describe(path, **{**fields, **changes})


def take_step(
    connection: RuntimeClient,
    value: float,
    sequence: int | str = 1,
    *,
    start: bool = False,
    end: bool = False,
    deadline_ns: int | None = None,
) -> tuple[int, Answer]:
    x = np.full((1, 2), value, np.float32)
    staged = connection.stage((TensorForm("x", "FP32", x.shape),), [x.nbytes])
    connection.memory(staged.regions[0])[:] = x.tobytes()
    answer, step = Answer(), SequenceStep(json.dumps(sequence), start, end)
    number = connection.submit(staged, ["y"], "normal", deadline_ns, answer, step=step)
    return number, answer


def total(answer: Answer) -> float:
    return float(answer.output()[0, 0])


def test_steps_that_come_at_once_are_done_in_order(
    shared_place: RuntimePaths, accumulator: Path
) -> None:
    with opened(shared_place, stateful(accumulator, max_queue_size=1000)) as connection:
        sequences: list[int | str] = [7, "7", 8, "eight"]
        answers: dict[int | str, list[Answer]] = {key: [] for key in sequences}
        for index in range(100):
            for place, key in enumerate(sequences):
                value, (start, end) = index + place, (index == 0, index == 99)
                answers[key].append(take_step(connection, value, key, start=start, end=end)[1])
        for place, key in enumerate(sequences):
            expected = list(itertools.accumulate(float(index + place) for index in range(100)))
            assert [total(answer) for answer in answers[key]] == expected


def test_a_request_that_is_late_or_cancelled_leaves_the_state_as_it_was(
    place: RuntimePaths, accumulator: Path, tmp_path: Path
) -> None:
    slow = describe(slow_model(tmp_path / "slow.onnx"))
    with opened(place, stateful(accumulator)) as connection, opened(place, slow) as other:
        assert total(take_step(connection, 1, start=True)[1]) == 1
        busy, _ = submit_and_see_begin(other)  # what comes with it may go before it
        first = take_step(connection, 2)[1]
        late = take_step(connection, 10, deadline_ns=time.monotonic_ns() + 50_000_000)[1]
        number, gone = take_step(connection, 100)
        connection.cancel(number)
        assert isinstance(gone.wait().error, CancelledError)
        assert isinstance(late.wait().error, UnavailableError)
        assert not first.has_come or busy.has_come
        assert total(take_step(connection, 3, end=True)[1]) == 6
        assert total(first) == 3


def test_steps_that_wait_for_each_other_are_bounded(
    place: RuntimePaths, accumulator: Path, tmp_path: Path
) -> None:
    slow = describe(slow_model(tmp_path / "slow.onnx"))
    small = stateful(accumulator, max_queue_size=3)
    with opened(place, small) as connection, opened(place, slow) as other:
        busy = submit(other, SLOW_INPUT)[1]
        answers = [take_step(connection, 1, start=index == 0)[1] for index in range(5)]
        refused = answers[4].wait().error
        assert isinstance(refused, UnavailableError)
        assert "3 requests of model 'accumulator' wait for others of their sequences" in str(
            refused
        )
        assert [total(answer) for answer in answers[:4]] == [1, 2, 3, 4]
        busy.wait()


def test_a_sequence_that_has_ended_is_forgotten(
    shared_place: RuntimePaths, accumulator: Path
) -> None:
    with opened(shared_place, stateful(accumulator)) as connection:
        assert total(take_step(connection, 1, start=True, end=True)[1]) == 1
        error = take_step(connection, 1)[1].wait().error
        assert isinstance(error, UnavailableError)
        assert "the state of sequence 1 of model 'accumulator' is lost" in str(error)


def test_a_dead_worker_takes_the_states_with_it(place: RuntimePaths, accumulator: Path) -> None:
    with opened(place, stateful(accumulator)) as connection:
        assert total(take_step(connection, 1, start=True)[1]) == 1
        kill(worker_of(place))
        under_way = take_step(connection, 1)[1]
        begins = [take_step(connection, 5, "b", start=True)[1], take_step(connection, 5, "b")[1]]
        assert "is lost" in str(under_way.wait().error)
        assert [total(answer) for answer in begins] == [5, 10]
        assert "is lost" in str(take_step(connection, 1)[1].wait().error)
        assert total(take_step(connection, 3, start=True)[1]) == 3
        assert total(take_step(connection, 3)[1]) == 6


def test_instances_have_states_of_their_own(shared_place: RuntimePaths, accumulator: Path) -> None:
    model = stateful(accumulator)
    with opened(shared_place, model) as one, opened(shared_place, model) as other:
        assert total(take_step(one, 1, start=True)[1]) == 1
        assert total(take_step(other, 5, start=True)[1]) == 5
        assert total(take_step(one, 1)[1]) == 2
        assert total(take_step(other, 5)[1]) == 10


def test_a_state_has_to_belong_to_a_sequence(
    shared_place: RuntimePaths, accumulator: Path
) -> None:
    with opened(shared_place, stateful(accumulator)) as connection:
        error = submit(connection, np.ones((1, 2), np.float32))[1].wait().error
    assert isinstance(error, InvalidRequestError)


@pytest.mark.parametrize(
    ("content", "complaint"), [(b"1234", "takes 8 bytes, got 4"), (None, "No such file")]
)
def test_a_first_state_that_cannot_be_read_refuses_the_model(
    shared_place: RuntimePaths,
    accumulator: Path,
    tmp_path: Path,
    content: bytes | None,
    complaint: str,
) -> None:
    file = tmp_path / "first"
    if content is not None:
        file.write_bytes(content)
    model = stateful(accumulator, states=(SUM._replace(file=str(file)),))
    with pytest.raises(InvalidModelError, match=complaint), opened(shared_place, model):
        pass


def waiting(number: int) -> Job:
    return Job(number, "m", JobClass.NORMAL, 0, None)


@pytest.fixture
def sequences() -> Sequences:
    nowhere = Region(0, 0, 64)
    return Sequences(
        LoadModel("m", 1, "m.onnx", 4, True, 8, "normal", (SUM,), 3, 1_000, mark=nowhere)
    )


def enter(sequences: Sequences, key: str, now_ns: int, *, start: bool, leave: bool = True) -> None:
    job = waiting(now_ns)
    sequence = sequences.enter(job, SequenceStep(key, start, False), now_ns, None)
    if leave:
        sequences.leave(sequence, job, now_ns)


def test_idle_sequences_are_forgotten_some_time_after_triton_has_ended_them(
    sequences: Sequences,
) -> None:
    enter(sequences, "idle", 0, start=True)
    enter(sequences, "busy", 0, start=True, leave=False)
    enter(sequences, "used", 0, start=True)
    enter(sequences, "used", 500, start=False)
    sequences.forget_idle(1_000 + IDLE_MARGIN_NS)
    assert len(sequences) == 3
    sequences.forget_idle(1_001 + IDLE_MARGIN_NS)
    assert len(sequences) == 2
    with pytest.raises(UnavailableError, match="the state of sequence idle"):
        enter(sequences, "idle", 2_000, start=False)
    enter(sequences, "used", 2_000, start=False)


def test_no_more_states_are_kept_than_twice_what_triton_lets_be(sequences: Sequences) -> None:
    for number in range(6):
        enter(sequences, f"s{number}", number, start=True)
    enter(sequences, "s0", 10, start=False)
    for number in range(6, 100):
        enter(sequences, f"s{number}", 20 + number, start=True)
        assert len(sequences) == 6
    with pytest.raises(UnavailableError, match="sequence s1 "):
        enter(sequences, "s1", 200, start=False)
    enter(sequences, "s99", 200, start=False)


def test_a_start_begins_a_life_of_its_own_beside_the_one_under_way(sequences: Sequences) -> None:
    old, new = waiting(1), waiting(2)
    before = sequences.enter(old, SequenceStep("1", True, False), 0, None)
    after = sequences.enter(new, SequenceStep("1", True, False), 0, None)
    assert before is not after
    before.state = {}
    assert list(after.state) == ["sum"]
    assert sequences.leave(before, old, 1) is None
    assert len(sequences) == 1
