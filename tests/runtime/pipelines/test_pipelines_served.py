"""Pipelines in a real runtime: answers, replanning, errors, cancellation, sharing, unloading."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from brisk import __version__
from brisk.errors import (
    CancelledError,
    InvalidModelError,
    InvalidRequestError,
    UnavailableError,
)
from brisk.protocol.channel import Receiver, send_record
from brisk.protocol.records import PROTOCOL_VERSION, Hello, LoadModel, Region
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.protocol.shared_memory import MARK_BYTES
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.telemetry.metrics import PIPELINE_NODES, PIPELINE_OBJECTIVES
from brisk.telemetry.observer import Observer
from support.pipeline_entries import (
    confident,
    describe_fork,
    network,
    scaler,
    slow_variant,
    write,
)
from support.runtime.runtime_process import (
    SLOW_INPUT,
    attach,
    describe,
    endless_model,
    infer,
    opened,
    quick_model,
    slow_model,
    submit,
    worker_of,
)
from support.waiting import wait_until

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    return tmp_path / "repository" / "fork" / "1"


@contextmanager
def served(place: RuntimePaths, path: Path, **changes: Any) -> Iterator[RuntimeClient]:
    with opened(place, describe(path, name="fork", **changes)) as connection:
        yield connection


def one_node(file: str, **more: Any) -> dict[str, Any]:
    node = {
        "inputs": {"x": "request.x"},
        "variants": {"only": {"file": file, "accuracy": 1}},
        **more,
    }
    return {"objective_ms": 1000, "nodes": {"single": node}, "outputs": {"y": "single.y"}}


def test_a_fork_and_its_join_answer_as_their_networks_do(
    shared_place: RuntimePaths, version: Path
) -> None:
    with served(shared_place, write(version, describe_fork(version))) as connection:
        for count in (1, 2, 300):
            x = np.random.default_rng(count).random((count, 4), np.float32)
            np.testing.assert_allclose(infer(connection, x), 4 * x, rtol=1e-5)


def test_joined_requests_have_their_own_rows(shared_place: RuntimePaths, version: Path) -> None:
    path = write(version, describe_fork(version))
    with served(shared_place, path, max_batch_size=8, batching=True) as connection:
        sent = [submit(connection, X + number)[1] for number in range(20)]
        for number, answer in enumerate(sent):
            np.testing.assert_allclose(answer.output(), 4 * (X + number), rtol=1e-5)


def test_an_early_answer_is_taken_where_every_row_is_sure(
    shared_place: RuntimePaths, version: Path
) -> None:
    confident(version / "early.onnx", factor=100)
    scaler(version / "late.onnx", 2.0)
    early = {"file": "early.onnx", "confidence": "p", "at_least": 1.0}
    description = one_node("late.onnx", early_answer=early)
    with served(shared_place, write(version, description)) as connection:
        sure, unsure = np.full((1, 4), 1.5, np.float32), np.full((1, 4), 0.5, np.float32)
        np.testing.assert_allclose(infer(connection, sure), 100 * sure)
        np.testing.assert_allclose(infer(connection, unsure), 2 * unsure)
        both = np.concatenate([sure, unsure])
        np.testing.assert_allclose(infer(connection, both), 2 * both)


def test_little_time_makes_every_node_take_its_fastest_variant(
    shared_place: RuntimePaths, version: Path
) -> None:
    """The answers say which."""
    scaler(version / "quick.onnx", 1.0)
    slow_variant(version / "thorough.onnx")
    description = one_node("quick.onnx")
    description["nodes"]["single"]["variants"]["thorough"] = {
        "file": "thorough.onnx",
        "accuracy": 1,
    }
    description["nodes"]["single"]["variants"]["only"]["accuracy"] = 0.9
    x = np.ones((1, 4), np.float32)
    description["objective_ms"] = 60_000
    with served(shared_place, write(version, description)) as connection:
        np.testing.assert_allclose(infer(connection, x), 7 * x, err_msg="there is time")
        soon_ns = time.monotonic_ns() + 20_000_000
        answer = submit(connection, x, deadline_ns=soon_ns)[1].wait()
        if answer.error is None:  # else the machine was too slow even for that
            np.testing.assert_allclose(answer.output(), x, err_msg="there is none")
        else:
            assert isinstance(answer.error, UnavailableError)
    description["objective_ms"] = 0.001
    with served(shared_place, write(version, description)) as connection:
        np.testing.assert_allclose(infer(connection, x), x, err_msg="late, but answered")


def test_a_pipeline_shares_its_networks_with_ordinary_entries(
    place: RuntimePaths, version: Path
) -> None:
    other = scaler(version.parent.parent / "doubler" / "1" / "model.onnx", 2.0)
    description = one_node("")
    variant = {"entry": "doubler", "version": 1, "accuracy": 1}
    description["nodes"]["single"]["variants"]["only"] = variant
    path = write(version, description)
    with opened(place, describe(other, name="doubler")), Observer(place, Role.FOREGROUND) as look:

        def held() -> int:
            return look.status().model_count

        with served(place, path) as connection:
            np.testing.assert_allclose(infer(connection, X), 2 * X)
            assert held() == 2, "the pipeline, and a network for both"
            with served(place, path):
                assert held() == 2
        wait_until(lambda: held() == 1, "the end of the pipeline")
    with served(place, path) as alone, Observer(place, Role.FOREGROUND) as look:
        np.testing.assert_allclose(infer(alone, X), 2 * X)
        assert look.status().model_count == 2
        assert [model.name for model in look.status().models] == ["fork"]


def test_errors_of_a_node_name_it_and_its_variant(
    shared_place: RuntimePaths, version: Path
) -> None:
    node = helper.make_node("MatMul", ["x", "x"], ["y"])
    network(version / "square.onnx", [node], {"x": ["n", "m"]}, {"y": ["n", "m"]})
    description = one_node("square.onnx")
    description["trial_shapes"] = {"x": [3, 3]}
    with served(shared_place, write(version, description)) as connection:
        error = submit(connection, X)[1].wait().error
        assert isinstance(error, InvalidRequestError)
        assert "node 'single', variant 'only': " in str(error)
        square = np.eye(3, dtype=np.float32)
        np.testing.assert_allclose(infer(connection, square), square)


def test_a_trial_that_fails_refuses_the_load_and_says_how_to_change_it(
    shared_place: RuntimePaths, version: Path
) -> None:
    node = helper.make_node("Concat", ["x", "three"], ["y"], axis=0)
    weights = {"three": np.zeros((3, 3), np.float32)}
    network(version / "wide.onnx", [node], {"x": ["n", "m"]}, {"y": ["n", "m"]}, weights)
    path = write(version, one_node("wide.onnx"))
    with pytest.raises(Exception, match=r"node 'single', variant 'only': .*trial_shapes"):
        RuntimeClient(shared_place, describe(path), lambda level, text: None).open()


def test_a_trial_that_does_not_end_holds_nobody_up_and_is_given_up(
    place: RuntimePaths, version: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_MAX_LOAD_S", "3")
    version.mkdir(parents=True)
    endless_model(version / "endless.onnx", least=2.0**62)
    path = write(version, one_node("endless.onnx"))
    errors: list[Exception] = []

    def load() -> None:
        try:
            RuntimeClient(place, describe(path, name="fork"), lambda level, text: None).open()
        except Exception as error:  # noqa: BLE001  # the test looks at it
            errors.append(error)

    with opened(place, describe(quick_model(tmp_path / "quick.onnx"))) as innocent:
        worker, loading = worker_of(place), threading.Thread(target=load)
        loading.start()
        answered_beside = 0
        while not errors:
            np.testing.assert_array_equal(submit(innocent, X, "realtime")[1].output(), -X)
            answered_beside += 1
        loading.join()
        assert "the trial run of" in str(errors[0])
        assert "takes longer than 3 s (BRISK_MAX_LOAD_S)" in str(errors[0])
        assert answered_beside > 10
        np.testing.assert_array_equal(infer(innocent, X), -X)
        assert worker_of(place) == worker


def test_a_pipeline_whose_networks_do_not_load_is_refused_with_their_names(
    shared_place: RuntimePaths, version: Path
) -> None:
    description = describe_fork(version)
    (version / "left_large.onnx").write_bytes(b"no model")
    path = write(version, description)
    with pytest.raises(InvalidModelError, match="node 'left', variant 'large'"):
        RuntimeClient(shared_place, describe(path), lambda level, text: None).open()
    describe_fork(version)
    with served(shared_place, write(version, description)) as connection:
        np.testing.assert_allclose(infer(connection, X), 4 * X)


def test_a_wrong_description_is_refused_by_the_runtime_too(
    shared_place: RuntimePaths, version: Path
) -> None:
    path = write(version, {"nodes": {}})
    with pytest.raises(InvalidModelError, match="objective_ms must be"):
        RuntimeClient(shared_place, describe(path), lambda level, text: None).open()


def test_a_running_pipeline_is_cancelled_interrupted_and_late_between_segments(
    shared_place: RuntimePaths, version: Path
) -> None:
    slow_model_in(version)
    quick = scaler(version.parent.parent / "quick" / "1" / "model.onnx", 2.0)
    path = write(version, one_node("slow.onnx"))
    urgent = describe(quick, name="quick", job_class="realtime")
    with opened(shared_place, urgent) as other, served(shared_place, path) as connection:
        number, answer = submit(connection, SLOW_INPUT)
        np.testing.assert_allclose(submit(other, X, "realtime")[1].output(), 2 * X)
        assert not answer.has_come, "the urgent request interrupted it"
        connection.cancel(number)
        assert isinstance(answer.wait().error, CancelledError)
        late = submit(connection, SLOW_INPUT, deadline_ns=time.monotonic_ns() + 50_000_000)[1]
        assert isinstance(late.wait().error, UnavailableError)


def test_a_real_time_pipeline_does_not_wait_for_the_normal_run_of_its_network(
    shared_place: RuntimePaths, version: Path
) -> None:
    """The run that it parks is of the very session that its node needs."""
    (version.parent.parent / "slow" / "1").mkdir(parents=True)
    file = slow_model(version.parent.parent / "slow" / "1" / "model.onnx", steps=100)
    description = one_node("")
    variant = {"entry": "slow", "version": 1, "accuracy": 1}
    description["nodes"]["single"]["variants"]["only"] = variant
    description["objective_ms"] = 60_000
    path = write(version, description)
    with opened(shared_place, describe(file)) as plain, served(shared_place, path) as pipeline:
        expected = submit(plain, SLOW_INPUT)[1].output()
        normal = [submit(plain, SLOW_INPUT)[1] for _ in range(4)]
        urgent = submit(pipeline, SLOW_INPUT, "realtime")[1]
        np.testing.assert_array_equal(urgent.output(), expected)
        assert not normal[-1].has_come
        for answer in normal:
            np.testing.assert_array_equal(answer.output(), expected)


def slow_model_in(version: Path) -> None:
    version.mkdir(parents=True)
    slow_model(version / "slow.onnx")


def test_a_pipeline_that_nobody_waits_for_any_more_is_not_kept(
    place: RuntimePaths, version: Path, quick: Path
) -> None:
    slow_model_in(version)
    path = write(version, one_node("slow.onnx"))
    with opened(place, describe(quick)), Observer(place, Role.FOREGROUND) as look:
        with place.connect(10.0) as leaving:
            send_record(leaving, Hello(PROTOCOL_VERSION, __version__, 1, 0))
            Receiver(leaving).receive()
            attach(leaving)
            mark = Region(0, 0, MARK_BYTES)
            model = LoadModel("m", 1, str(path), 0, False, 1, "normal", mark=mark)
            send_record(leaving, model)
            wait_until(lambda: look.status().model_count == 3, "the load")
        wait_until(lambda: look.status().model_count == 1, "the end of the load")


def test_what_pipelines_choose_is_counted(place: RuntimePaths, version: Path) -> None:
    with (
        served(place, write(version, describe_fork(version))) as connection,
        Observer(place, Role.FOREGROUND) as look,
    ):
        for _ in range(3):
            infer(connection, X)
        counted = {(each.metric, each.labels): each.values for each in look.statistics()}
    nodes = {labels: v for (name, labels), v in counted.items() if name == PIPELINE_NODES.name}
    assert sum(value for (value,) in nodes.values()) == 12
    assert nodes["fork", "1", "join", "only", "full"] == (3,)
    results = [v for (name, _), v in counted.items() if name == PIPELINE_OBJECTIVES.name]
    assert sum(value for (value,) in results) == 3


def test_of_requests_that_came_together_each_keeps_or_misses_its_objective(
    place: RuntimePaths, version: Path
) -> None:
    with (
        served(place, write(version, describe_fork(version))) as connection,
        Observer(place, Role.FOREGROUND) as look,
    ):
        submit(connection, X, requests=2)[1].output()
        counted = [each for each in look.statistics() if each.metric == PIPELINE_OBJECTIVES.name]
    assert [each.values for each in counted] == [(2,)]
