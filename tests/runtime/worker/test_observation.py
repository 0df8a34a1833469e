"""What a worker tells of itself to who asks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.errors import InvalidRequestError, UnavailableError
from brisk.protocol.records import AskStatistics, ForgetStatistics, Sample, StatisticsTold
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.protocol.status import ModelStatus
from brisk.settings import PEERS
from brisk.telemetry.observer import Observer, observe_all
from support.models.identity_models import write_model
from support.runtime.runtime_process import (
    SLOW_INPUT,
    background_worker_of,
    describe,
    infer,
    kill,
    opened,
    submit,
    submit_and_see_begin,
    supervisor_of,
    worker_of,
)
from support.waiting import wait_until

LANES = ("queue", "layers", "requests", "load lane")
FRONTEND = "frontend"
ROW = np.ones((1, 4), np.float32)


def values(samples: list[Sample]) -> dict[str, tuple[int, ...]]:
    return {" ".join([each.metric, *each.labels]): each.values for each in samples}


def test_the_state_of_models_and_runs_is_told(
    place: RuntimePaths, quick: Path, slow: Path
) -> None:
    with (
        opened(place, describe(quick)) as connection,
        opened(place, describe(quick)),
        opened(place, describe(slow)) as busy,
        Observer(place, Role.FOREGROUND) as observer,
    ):
        infer(connection, ROW)
        infer(connection, ROW)
        number, _ = submit(busy, SLOW_INPUT)
        wait_until(lambda: bool(observer.status().runs), "a run")
        status = observer.status()
        (run,) = status.runs
        assert (run.model, run.job_class, run.requests) == ("slow", "normal", 1)
        models = {model.name: model for model in status.models}
        assert (models["quick"].uses, models["slow"].uses) == (2, 1)
        assert (models["quick"].answered, models["slow"].answered) == (2, 0)
        assert (sum(models["quick"].durations), sum(models["slow"].durations)) == (2, 0)
        assert models["quick"].is_ready
        assert models["quick"].layers > 0
        assert 0 <= models["quick"].loaded_layers <= models["quick"].layers
        wait_until(lambda: _is_settled(observer, "quick"), "kernels that stay")
        assert (status.pid, status.role, status.frontends) == (worker_of(place), "foreground", 3)
        assert (status.device, status.threads, status.model_count) == ("cpu", 1, 2)
        busy.cancel(number)


def _is_settled(observer: Observer, name: str) -> bool:
    return any(model.name == name and model.is_settled for model in observer.status().models)


def test_what_went_wrong_is_told_the_newest_first(place: RuntimePaths, quick: Path) -> None:
    with opened(place, describe(quick)) as connection:
        for shape in ((2, 3), (2, 5), (2, 4, 4)):
            assert submit(connection, np.ones(shape, np.float32))[1].wait().error is not None
        with Observer(place, Role.FOREGROUND) as observer:
            newest, older, *_ = observer.status().incidents
    assert newest.what.startswith("request of model 'quick':")
    assert re.match(r"\d+ times, the last: request of model 'quick':", older.what), older.what
    assert newest.ago_ns < older.ago_ns


def test_requests_that_came_together_are_counted_each(
    place: RuntimePaths, quick: Path, slow: Path
) -> None:
    with (
        opened(place, describe(slow)) as busy,
        opened(place, describe(quick, max_queue_size=1)) as connection,
        Observer(place, Role.FOREGROUND) as observer,
    ):

        def told() -> ModelStatus:
            return next(each for each in observer.status().models if each.name == "quick")

        wrong = submit(connection, np.ones((4, 9), np.float32), requests=4)[1].wait().error
        assert isinstance(wrong, InvalidRequestError)
        assert told().failed == 0, "the stub sends each of them by itself"
        _, number = submit_and_see_begin(busy)
        waits = submit(connection, np.ones((4, 4), np.float32), requests=4)[1]
        wait_until(lambda: told().waiting == 4, "four that wait")
        gauge = values(observer.statistics())["brisk_waiting_requests foreground"]
        assert gauge == (4,)
        refused = submit(connection, np.ones((3, 4), np.float32), requests=3)[1].wait().error
        assert isinstance(refused, UnavailableError)
        assert told().failed == 3
        submit(connection, ROW, "realtime")[1].output()
        assert isinstance(waits.wait().error, UnavailableError)
        assert told().failed == 7
        assert values(observer.statistics())["brisk_shed_total quick 1 normal"] == (4,)
        told_of = [incident.what for incident in observer.status().incidents]
        assert any("took its place" in what for what in told_of)  # not only: `slow` takes long
        busy.cancel(number)


def ask_news(observer: Observer) -> StatisticsTold:
    observer.send(AskStatistics(takes_news=True))
    answer = observer.receive()
    assert isinstance(answer, StatisticsTold)
    assert answer.is_last
    assert answer.worker == "foreground"
    return answer


def news_once_chosen(heir: Observer) -> dict[str, tuple[int, ...]]:
    """What the reader is told first that another one has left its place to."""
    told: list[StatisticsTold] = []

    def is_chosen() -> bool:
        told.append(ask_news(heir))
        return told[-1].is_chosen

    wait_until(is_chosen, "another reader")
    return values(list(told[-1].samples))


def test_news_are_told_once_and_everything_to_who_asks_for_it(
    place: RuntimePaths, quick: Path
) -> None:
    loads = "brisk_loads_total quick 1 entry loaded"
    with opened(place, describe(quick)), Observer(place, Role.FOREGROUND) as observer:
        first, second = (values(list(ask_news(observer).samples)) for _ in range(2))
        assert first[loads] == (1,)
        assert loads not in second
        assert values(observer.statistics())[loads] == (1,)


def test_one_stub_of_a_server_is_told_until_it_goes(place: RuntimePaths, quick: Path) -> None:
    loads = "brisk_loads_total quick 1 entry loaded"
    with opened(place, describe(quick)), Observer(place, Role.FOREGROUND) as heir:
        with Observer(place, Role.FOREGROUND) as dies:
            assert values(list(ask_news(dies).samples))[loads] == (1,)
            answer = ask_news(heir)
            assert (answer.is_chosen, answer.samples) == (False, ())
            heir.send(ForgetStatistics())  # of one that was told nothing: nothing happens
        news = news_once_chosen(heir)
        assert loads not in news
        assert news["brisk_loaded_models foreground"] == (1,), "gauges go with who shows them"
        assert loads not in values(list(ask_news(heir).samples))


def test_a_stub_that_withdraws_what_it_showed_leaves_all_to_the_next(
    place: RuntimePaths, quick: Path
) -> None:
    loads = "brisk_loads_total quick 1 entry loaded"
    with opened(place, describe(quick)), Observer(place, Role.FOREGROUND) as heir:
        with Observer(place, Role.FOREGROUND) as leaves:
            assert loads in values(list(ask_news(leaves).samples))
            assert not ask_news(heir).is_chosen
            leaves.send(ForgetStatistics())
        assert news_once_chosen(heir)[loads] == (1,)


def test_a_worker_that_replaces_a_dead_one_says_so(place: RuntimePaths, quick: Path) -> None:
    restarts = "brisk_worker_restarts_total foreground"
    with opened(place, describe(quick)) as connection:
        with Observer(place, Role.FOREGROUND) as observer:
            assert values(observer.statistics())[restarts] == (0,)
        kill(worker_of(place))
        infer(connection, ROW)
        with Observer(place, Role.FOREGROUND) as observer:
            assert values(observer.statistics())[restarts] == (1,)


def test_looking_starts_no_worker_and_shows_all_that_live(
    place: RuntimePaths, quick: Path
) -> None:
    with opened(place, describe(quick)) as connection:
        observers = list(observe_all(place))
        assert [observer.status().role for observer in observers] == ["foreground"]
        submit(connection, ROW, "besteffort")[1].wait()
        observers += observe_all(place)
        assert [each.status().role for each in observers[1:]] == ["foreground", "background"]
        for observer in observers:
            observer.close()


@pytest.mark.parametrize("policy", ["preemptive", "sequential"])
def test_a_further_child_of_the_supervisor_is_taken_for_no_worker(
    place: RuntimePaths, quick: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """The courier, which a runtime with peers on other hosts starts."""
    monkeypatch.setenv(PEERS, "127.0.0.1:9")
    monkeypatch.setenv("BRISK_POLICY", policy)
    with opened(place, describe(quick)), contextlib.ExitStack() as endings:
        supervisor = supervisor_of(place)
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children")
        wait_until(lambda: len(children.read_text().split()) == 2, "worker and courier")
        (courier,) = set(map(int, children.read_text().split())) - {worker_of(place)}
        endings.callback(kill, courier)
        observers = list(map(endings.enter_context, observe_all(place)))
        assert [each.status().role for each in observers] == ["foreground"]
        assert background_worker_of(place) is None


def test_a_trace_has_the_wait_the_segments_and_the_answer_of_each_request(
    place: RuntimePaths, quick: Path, slow: Path
) -> None:
    with opened(place, describe(quick)) as connection:
        infer(connection, ROW)
        with Observer(place, Role.FOREGROUND) as observer:
            observer.begin_trace()
            with opened(place, describe(slow)):
                infer(connection, ROW)
            spans = observer.end_trace()
            infer(connection, ROW)
            assert observer.end_trace() == []
    lanes = {lane: [span for span in spans if span.lane == lane] for lane in LANES}
    (wait,), (segment,), (request,), (load,) = lanes.values()
    assert wait.request == segment.request == request.request
    assert request.begin_ns == wait.begin_ns <= wait.end_ns <= segment.begin_ns
    assert segment.begin_ns <= segment.end_ns <= request.end_ns
    assert (wait.name, segment.name, request.name) == (
        "waits, normal",
        "0 1 node, y",
        "quick 1, normal",
    )
    assert load.name == "load slow.onnx"
    assert not [span for span in spans if span.lane == FRONTEND], "nobody said when it arrived"


def test_a_trace_tells_when_the_stub_had_the_request(place: RuntimePaths, quick: Path) -> None:
    with opened(place, describe(quick)) as connection:
        infer(connection, ROW)
        with Observer(place, Role.FOREGROUND) as observer:
            observer.begin_trace()
            arrived_ns = time.monotonic_ns()
            submit(connection, ROW, "normal", arrived_ns=arrived_ns)[1].wait()
            spans = observer.end_trace()
    (way,) = [span for span in spans if span.lane == FRONTEND]
    (wait,) = [span for span in spans if span.lane == "queue"]
    assert (way.begin_ns, way.end_ns, way.request) == (arrived_ns, wait.begin_ns, wait.request)
    assert way.name == "to the worker, normal"


def test_a_trace_ends_with_who_asked_for_it_last(place: RuntimePaths, quick: Path) -> None:
    with opened(place, describe(quick)) as connection:
        with Observer(place, Role.FOREGROUND) as earlier:
            earlier.begin_trace()
            assert earlier.status().models
            later = Observer(place, Role.FOREGROUND)
            later.begin_trace()
            assert later.status().models
        infer(connection, ROW)
        assert later.end_trace() != [], "another one's end is no end of this"
        later.begin_trace()
        assert later.status().models
        later.close()
        infer(connection, ROW)
        with Observer(place, Role.FOREGROUND) as last:
            assert last.end_trace() == []


@pytest.mark.parametrize("is_given", [False, True])
def test_a_model_of_texts_is_traced_without_a_server(tmp_path: Path, is_given: bool) -> None:
    kind = (TensorProto.STRING, ["n"])
    model = write_model(tmp_path / "texts", {"s": kind}, {"t": kind})
    np.savez(tmp_path / "given.npz", s=np.array(["one", "zwei", "trois"]))
    words = ["trace", str(model), "--output", str(tmp_path / "trace.json")]
    words += ["--data", str(tmp_path / "given.npz")] if is_given else []
    answer = CliRunner().invoke(application, words)
    assert answer.exit_code == 0, answer.output
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    asked = [each["name"] for each in events if each.get("cat") == "client"]
    assert asked == ["load model.onnx", "first request", "warm request"]


def test_no_runtime_is_an_error_that_names_the_place(place: RuntimePaths) -> None:
    with pytest.raises(
        UnavailableError, match=r"no runtime of cpu answers at .*foreground\.sock"
    ) as told:
        Observer(place, Role.FOREGROUND)
    for reason in ("no server with a model of Brisk's runs", "is not the server's", "was removed"):
        assert reason in str(told.value)


def test_the_command_prints_tables_and_json(place: RuntimePaths, quick: Path) -> None:
    environment = {**os.environ, "BRISK_RUNTIME_DIR": str(place.base)}
    with opened(place, describe(quick)) as connection:
        infer(connection, ROW)
        command = [sys.executable, "-m", "brisk.cli", "status"]
        table = subprocess.run(
            [*command, "--once"], env=environment, capture_output=True, text=True, timeout=60
        )
        assert table.returncode == 0, table.stderr
        assert "foreground" in table.stdout
        assert "quick/1" in table.stdout
        unasked = subprocess.run(command, env=environment, capture_output=True, timeout=60)
        assert unasked.returncode == 0, "one look where the output is no terminal"
        assert b"quick/1" in unasked.stdout
        document = subprocess.run(
            [*command, "--json"], env=environment, capture_output=True, text=True, timeout=60
        )
    (worker,) = json.loads(document.stdout)
    shown = worker["status"]["models"][0]
    assert (shown["name"], shown["job_class"]) == ("quick", "normal")
    assert shown["weight_bytes"] == quick.stat().st_size
    assert any(name == "brisk_loads_total" for name, *_ in map(dict.values, worker["samples"]))
