"""Learned caches of networks within pipelines: they answer, are opted out of, and counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.telemetry.metrics import AUDITED_ANSWERS, EARLY_ANSWERS, PIPELINE_NODES, Metric
from brisk.telemetry.observer import Observer
from support.exits.exits_model import MILLION, Model, ask, make_model
from support.pipeline_entries import confident, scaler, slow_variant, write
from support.runtime.runtime_process import describe, infer, opened
from support.runtime.runtime_processes import hurry_helpers
from support.waiting import TIMED

pytestmark = pytest.mark.timing

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    version = tmp_path_factory.mktemp("repository") / "detecting" / "1"
    version.mkdir(parents=True)
    return make_model(version / "network.onnx")


@pytest.fixture(scope="module")
def connection(shared_place: RuntimePaths, model: Model) -> Iterator[RuntimeClient]:
    node = {
        "inputs": {"image": "request.image"},
        "variants": {"only": {"file": "network.onnx", "accuracy": 1}},
    }
    described = {
        "objective_ms": 1000,
        "nodes": {"detect": node},
        "outputs": {"scores": "detect.scores"},
    }
    path = write(model.file.parent, described)
    described_model = describe(path, name="detecting", max_batch_size=64, batching=True)
    with opened(shared_place, described_model) as made:
        deadline_s = time.monotonic() + PATIENCE_S
        while not told(shared_place, EARLY_ANSWERS, "detecting:detect"):
            with TIMED:
                assert time.monotonic() < deadline_s, "the caches never answered"
            ask(made, model.easy).output()
        yield made


def told(place: RuntimePaths, metric: Metric, *labels: str) -> int:
    """The sum of the foreground worker's series that have these labels."""
    with Observer(place, Role.FOREGROUND) as observer:
        return sum(
            sum(sample.values)
            for sample in observer.statistics()
            if sample.metric == metric.name and set(labels) <= set(sample.labels)
        )


def test_a_network_of_a_pipeline_answers_early_unless_the_request_opts_out(
    connection: RuntimeClient, model: Model, shared_place: RuntimePaths
) -> None:
    place, name = shared_place, "detecting:detect"
    mixed = np.concatenate([model.easy, model.hard])
    before = told(place, EARLY_ANSWERS, name)
    whole = ask(connection, mixed, ppm=MILLION).output()
    assert told(place, EARLY_ANSWERS, name) == before, "it wants the whole model"
    early = ask(connection, mixed).output()
    assert told(place, EARLY_ANSWERS, name) == before + len(model.easy)
    hard = slice(len(model.easy), None)
    np.testing.assert_allclose(early[hard], whole[hard], rtol=1e-2, atol=1e-3)
    assert not np.allclose(early[: len(model.easy)], whole[: len(model.easy)], rtol=1e-2)


def test_a_node_that_is_answered_early_is_counted_as_such(
    connection: RuntimeClient, model: Model, shared_place: RuntimePaths
) -> None:
    labels = ("detecting", "detect", "only")
    early = told(shared_place, PIPELINE_NODES, *labels, "early")
    full = told(shared_place, PIPELINE_NODES, *labels, "full")
    ask(connection, model.easy).output()
    ask(connection, np.concatenate([model.easy, model.hard])).output()
    assert told(shared_place, PIPELINE_NODES, *labels, "early") == early + 1
    assert told(shared_place, PIPELINE_NODES, *labels, "full") == full + 1


def test_a_variant_behind_frequent_early_answers_is_planned_as_a_fast_one(
    shared_place: RuntimePaths, tmp_path: Path
) -> None:
    """Its whole run takes more than the node's half of the objective, and less than all of it.

    Without early answers it is only tried now and then, never several times in a row.
    """
    version = tmp_path / "hopeful" / "1"
    confident(version / "early.onnx", factor=100)
    scaler(version / "quick.onnx", 1.0)
    slow_variant(version / "thorough.onnx")
    sure, unsure = np.full((1, 4), 1.5, np.float32), np.full((1, 4), 0.5, np.float32)

    def described(objective_ms: float) -> Path:
        variants = {
            name: {"file": f"{name}.onnx", "accuracy": 1 if name == "thorough" else 0.9}
            for name in ("quick", "thorough")
        }
        early = {"file": "early.onnx", "confidence": "p", "at_least": 1.0}
        nodes = {
            "first": {"inputs": {"x": "request.x"}, "variants": variants, "early_answer": early},
            "second": {
                "inputs": {"x": "first.y"},
                "variants": {"only": {"file": "quick.onnx", "accuracy": 1}},
            },
        }
        return write(
            version,
            {"objective_ms": objective_ms, "policy": "equal", "nodes": nodes}
            | {"replanning": "incremental", "outputs": {"y": "second.y"}},
        )

    path = described(60_000)
    with opened(shared_place, describe(path, name="hopeful")) as connection:
        taken_ms = []
        for _ in range(5):
            begun_s = time.perf_counter()
            np.testing.assert_allclose(infer(connection, unsure), 7 * unsure)
            taken_ms.append((time.perf_counter() - begun_s) * 1e3)
    path = described(1.6 * sorted(taken_ms)[2])
    with opened(shared_place, describe(path, name="hopeful")) as connection:
        deadline_s, in_a_row = time.monotonic() + PATIENCE_S, 0
        while in_a_row < 4:
            with TIMED:
                assert time.monotonic() < deadline_s, "early answers are not planned with"
            for _ in range(12):
                np.testing.assert_allclose(infer(connection, sure), 100 * sure)
            is_thorough = bool(np.allclose(infer(connection, unsure), 7 * unsure))
            in_a_row = in_a_row + 1 if is_thorough else 0


def test_early_answers_within_a_pipeline_are_audited(
    connection: RuntimeClient, model: Model, shared_place: RuntimePaths
) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not told(shared_place, AUDITED_ANSWERS, "detecting:detect", "agrees"):
        with TIMED:
            assert time.monotonic() < deadline_s, "nothing was audited"
        hurry_helpers(shared_place.base)  # the audit's process
        ask(connection, model.easy).output()
    assert not told(shared_place, AUDITED_ANSWERS, "detecting:detect", "differs")


def test_requests_of_other_agreement_are_not_joined(
    connection: RuntimeClient, model: Model
) -> None:
    answers = [
        ask(connection, model.easy[:1], ppm=ppm) for _ in range(20) for ppm in (None, MILLION)
    ]
    early, whole = answers[0].output(), answers[1].output()
    for number, answer in enumerate(answers):
        np.testing.assert_allclose(
            answer.output(), whole if number % 2 else early, rtol=1e-2, atol=1e-3
        )


def test_other_files_of_the_version_are_as_they_were(
    model: Model, connection: RuntimeClient
) -> None:
    assert {file.name for file in Path(model.file.parent).iterdir()} == {
        "network.onnx",
        "network.caches",
        "pipeline.json",
    }
