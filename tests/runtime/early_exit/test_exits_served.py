"""Learned caches in a real runtime: joined, preempted, in the background, opted out of."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from brisk.cli.commands import caches
from brisk.exits.cascade_file import write_cascade
from brisk.exits.files.versions import caches_file
from brisk.protocol.records import SequenceStep, StateForm
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.runtime.sessions.served_caches import REVIEWED_ROWS
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.telemetry.metrics import SWITCHED_OFF_EXITS
from brisk.telemetry.observer import Observer
from support.exits.exits_model import MILLION, Model, ask, make_model, taken
from support.runtime.runtime_process import (
    SLOW_INPUT,
    Answer,
    describe,
    opened,
    quick_model,
    slow_model,
    submit,
)
from support.waiting import wait_until


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("exits") / "model.onnx")


@pytest.fixture(scope="module")
def connection(shared_place: RuntimePaths, model: Model) -> Iterator[RuntimeClient]:
    described = describe(model.file, max_batch_size=64, batching=True)
    with opened(shared_place, described) as made:
        wait_until(lambda: taken(ask(made, model.easy[:1])) == model.name, "an early answer")
        yield made


def by_the_model(connection: RuntimeClient, inputs: np.ndarray) -> np.ndarray:
    return ask(connection, inputs, ppm=MILLION).output()


def test_an_answer_says_which_exit_gave_it_unless_the_request_wants_the_model(
    connection: RuntimeClient, model: Model
) -> None:
    mixed = np.concatenate([model.easy[:1], model.hard[:1]])
    assert taken(ask(connection, model.easy)) == model.name
    assert taken(ask(connection, model.hard)) == ""
    assert taken(ask(connection, mixed)) == f"{model.name}, model"
    assert taken(ask(connection, mixed, ppm=MILLION)) == ""
    assert taken(ask(connection, mixed, ppm=985_000)) == "", "the stricter level has no exit"


def test_a_request_with_a_state_is_never_answered_early(
    connection: RuntimeClient, model: Model, shared_place: RuntimePaths, tmp_path: Path
) -> None:
    """Its state is an input that is answered early where a client sends it."""
    assert taken(ask(connection, model.easy)) == model.name
    file = tmp_path / "easy"
    file.write_bytes(np.ascontiguousarray(model.easy).tobytes())
    state = StateForm("image", "scores", "FP32", tuple(model.easy.shape), str(file))
    described = describe(
        model.file, max_batch_size=64, batching=True, states=(state,), max_sequences=1
    )
    with opened(shared_place, described) as stateful:
        answer = Answer()
        step = SequenceStep("1", starts=True, ends=True)
        stateful.submit(stateful.stage((), []), ["scores"], "normal", None, answer, step=step)
        assert taken(answer) == ""
    np.testing.assert_allclose(
        answer.output(), by_the_model(connection, model.easy), rtol=1e-4, atol=1e-5
    )


def test_joined_requests_each_get_their_own_rows_and_the_easy_ones_first(
    connection: RuntimeClient, model: Model, shared_place: RuntimePaths, tmp_path: Path
) -> None:
    rows = [row[None] for pair in zip(model.easy, model.hard, strict=True) for row in pair]
    alone = [ask(connection, row).output() for row in rows]
    with opened(shared_place, describe(slow_model(tmp_path / "slow.onnx"))) as blocker:
        # While it runs, the others wait to be joined; in a class of its own, so that no other
        # model of theirs is asked for.
        number, _ = submit(blocker, SLOW_INPUT, "realtime")
        answers = [ask(connection, row) for row in rows]
        blocker.cancel(number)
        found = [answer.output() for answer in answers]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(alone), rtol=1e-2, atol=1e-3)
    assert [taken(answer) for answer in answers] == [model.name, ""] * 8
    results = [answer.result for answer in answers if answer.result is not None]
    assert len({result.started_ns for result in results}) == 1, "they run together"
    easy_ns, hard_ns = ([result.execution_ns for result in results[kind::2]] for kind in (0, 1))
    assert max(easy_ns) < min(hard_ns)


def test_a_run_with_exits_that_was_parked_ends_right(
    connection: RuntimeClient, model: Model, shared_place: RuntimePaths, tmp_path: Path
) -> None:
    big = np.concatenate([np.concatenate([model.easy, model.hard]) for _ in range(4)])
    undisturbed = ask(connection, big)
    quick = quick_model(tmp_path / "quick.onnx")
    row = np.ones((1, 4), np.float32)
    with opened(shared_place, describe(quick)) as urgent:
        expected = undisturbed.output()
        for _ in range(10):
            answer = ask(connection, big)
            while not answer.has_come:
                np.testing.assert_array_equal(submit(urgent, row, "realtime")[1].output(), -row)
            np.testing.assert_allclose(answer.output(), expected, rtol=1e-2, atol=1e-3)
            assert taken(answer) == taken(undisturbed)


def test_the_background_worker_has_caches_of_its_own(
    connection: RuntimeClient, model: Model
) -> None:
    deadline_s = time.monotonic() + 120  # it gets only what other processes leave
    is_early = False
    while not is_early:
        answer = ask(connection, model.easy[:1], "besteffort")
        while not answer.has_come:
            assert time.monotonic() < deadline_s, "no early answer in the background"
            time.sleep(0.02)
        is_early = taken(answer) == model.name
    answer = ask(connection, model.hard, "besteffort")
    while not answer.has_come and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert taken(answer) == ""


def test_status_and_caches_show_tell_what_exits_have_answered(
    connection: RuntimeClient,
    model: Model,
    shared_place: RuntimePaths,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Observer(shared_place, Role.FOREGROUND) as observer:
        (before,) = (each for each in observer.status().models if each.exits)
        for inputs in (model.easy, model.hard):
            ask(connection, inputs).output()
        ask(connection, model.easy, ppm=MILLION).output()
        (after,) = (each for each in observer.status().models if each.exits)
    assert after.offered_rows - before.offered_rows == 16
    assert after.exits[0].answered - before.exits[0].answered == 8
    assert (after.exits[0].name, after.exits[0].state) == (model.name, "on")
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(shared_place.base))
    caches.show(model.file)
    told = capsys.readouterr().out
    assert "promise 97.0%" in told
    found = re.search(r"of (\d+) rows that could have been answered early", told)
    assert found is not None
    assert int(found[1]) >= after.offered_rows, "those of the background worker are told, too"


def test_an_exit_that_costs_more_than_it_saves_is_switched_off_and_reported(
    shared_place: RuntimePaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An evaluation takes more than a nanosecond, which is all that an answer saves here."""
    made = make_model(tmp_path / "costly.onnx")
    (exit_,) = made.cascade.exits
    poor = dataclasses.replace(exit_, saved_s=1e-9, evaluation_s=0.0)
    write_cascade(caches_file(made.file), dataclasses.replace(made.cascade, exits=(poor,)))

    def state() -> str:
        with Observer(shared_place, Role.FOREGROUND) as observer:
            models = [each for each in observer.status().models if each.path in str(made.file)]
            return models[0].exits[0].state if models and models[0].exits else ""

    described = describe(made.file, max_batch_size=64, batching=True)
    with opened(shared_place, described) as connection:
        wait_until(lambda: taken(ask(connection, made.easy[:1])) == made.name, "an early answer")
        whole = ask(connection, made.easy, ppm=MILLION).output()
        for _ in range(REVIEWED_ROWS // 16 + 1):
            for answer in [ask(connection, made.easy), ask(connection, made.hard)]:
                answer.output()
        assert state() == "off: cost"
        np.testing.assert_allclose(
            ask(connection, made.easy).output(), whole, rtol=1e-2, atol=1e-3
        )
        with Observer(shared_place, Role.FOREGROUND) as observer:
            assert any(
                "is switched off: it has answered" in told.what
                for told in observer.status().incidents
            )
            counted = [
                sample.values
                for sample in observer.statistics()
                if sample.metric == SWITCHED_OFF_EXITS.name
                and sample.labels == ("costly", "1", made.name, "cost")
            ]
        assert [tuple(values) for values in counted] == [(1,)]
        monkeypatch.setenv("BRISK_RUNTIME_DIR", str(shared_place.base))
        monkeypatch.setenv("COLUMNS", "120")
        caches.show(made.file)
        assert "off: cost" in capsys.readouterr().out


def test_caches_show_says_where_no_runtime_answers(
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path))
    caches.show(model.file)
    assert "no live figures: no runtime of cpu answers" in capsys.readouterr().out
