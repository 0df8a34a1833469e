"""Learned caches through a real Triton: answered early, opted out of, ignored, switched off."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tritonclient import http
from tritonclient.utils import InferenceServerException

from brisk.exits.cascade import Cascade
from brisk.exits.cascade_file import digest_of, write_cascade
from brisk.exits.files.versions import caches_file
from brisk.exits.heads.exit_head import empty_head
from brisk.exits.learning.exporting import export_head
from brisk.triton.launch import TritonServer
from support.exits.cascades import CLASSES, SIDE, hidden_at, images, network, served
from support.exits.exits_model import Model, make_model
from support.server.entries import write_entry
from support.server.running import StartServer
from support.server.scraping import Series, value, wait_for
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.server, pytest.mark.timing, pytest.mark.beside]

CONFIG = (
    'backend: "brisk" max_batch_size: 8 '
    f'input [ {{ name: "image" data_type: TYPE_FP32 dims: [ 3, {SIDE}, {SIDE} ] }} ] '
    f'output [ {{ name: "scores" data_type: TYPE_FP32 dims: [ {CLASSES} ] }}, '
    '{ name: "label" data_type: TYPE_INT64 dims: [ 1 ] reshape: { shape: [ ] } } ] '
)


MIXED: dict[int, Model] = {}
"""The model of the entry "joined", once it is made."""


MODEST = 0.5
"""A promise that so few answers as these tests ask for cannot refute, however wrong they are."""


def eager(digest: str, promise: float = MODEST) -> Cascade:
    """An exit that answers everything, and of course hardly ever as the model would.

    At 0.98 and more nothing is answered early.
    """
    cascade = served(exits=(1,)).cascade
    torch.manual_seed(5)
    (exit_,) = cascade.exits
    head = empty_head(exit_.variant, exit_.shape, CLASSES)
    level = dataclasses.replace(cascade.levels[0], accuracy=promise, thresholds=(1e-9,))
    strict = dataclasses.replace(cascade.levels[1], thresholds=(math.inf,))
    return dataclasses.replace(
        cascade,
        model_digest=digest,
        exits=(dataclasses.replace(exit_, model=export_head(head, exit_.shape)),),
        levels=(level, strict),
        synchronous=True,
    )


@pytest.fixture(scope="module")
def server(start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:
    repository = tmp_path_factory.mktemp("early_exits")
    for name in ("cached", "eager", "audited", "damaged", "stale"):
        kept = "response_cache { enable: true }" if name == "cached" else ""
        file = write_entry(repository, name, network(), CONFIG + kept) / "1" / "model.onnx"
        digest = "another" if name == "stale" else digest_of(file)
        promise = 0.97 if name == "audited" else MODEST
        write_cascade(caches_file(file), eager(digest, promise))
        if name == "damaged":
            data = bytearray(caches_file(file).read_bytes())
            data[-40] ^= 1
            caches_file(file).write_bytes(data)
    (repository / "joined" / "1").mkdir(parents=True)
    mixed = make_model(repository / "joined" / "1" / "model.onnx")
    (repository / "joined" / "config.pbtxt").write_text(
        CONFIG.replace("max_batch_size: 8", "max_batch_size: 32")
        + "dynamic_batching { max_queue_delay_microseconds: 2000 }"
    )
    MIXED[0] = mixed
    told = {"BRISK_METRICS_INTERVAL_S": "0.5"}
    options = ("--cache-config=local,size=1048576",)
    return start_shared(repository, options, told)


@pytest.fixture
def client(server: TritonServer) -> Iterator[http.InferenceServerClient]:
    with http.InferenceServerClient(server.endpoints.http) as made:
        yield made


def ask(
    client: http.InferenceServerClient, model: str, inputs: np.ndarray, **parameters: object
) -> np.ndarray:
    image = http.InferInput("image", list(inputs.shape), "FP32")
    image.set_data_from_numpy(inputs)
    answer = client.infer(model, [image], parameters=parameters or None)
    scores, label = answer.as_numpy("scores"), answer.as_numpy("label")
    assert label.reshape(-1).tolist() == scores.argmax(1).tolist()
    return scores


def by_the_model(inputs: np.ndarray) -> np.ndarray:
    return served(exits=(1,)).whole.run({"image": inputs})["scores"]


def by_the_exit(inputs: np.ndarray) -> np.ndarray:
    cascade = eager("")
    (exit_,) = cascade.exits
    hidden = hidden_at(served(exits=(1,)).cut, exit_.point.value, inputs)
    return exit_.evaluate(hidden).logits


def same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return np.allclose(ours, theirs, rtol=1e-2, atol=1e-3)


def wait_for_caches(client: http.InferenceServerClient, model: str) -> None:
    """They are loaded behind the model itself."""
    expected = by_the_exit(images(1))
    wait_until(lambda: same(ask(client, model, images(1)), expected), "an answer of the caches")


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_easy_inputs_are_answered_by_the_exit_unless_the_request_opts_out(
    client: http.InferenceServerClient, rows: int
) -> None:
    wait_for_caches(client, "eager")
    inputs = images(rows, seed=rows)
    off = ask(client, "eager", inputs, brisk_early_exit=False)
    assert same(off, by_the_model(inputs))
    assert not same(off, by_the_exit(inputs))
    assert same(ask(client, "eager", inputs, brisk_accuracy="0.98"), by_the_model(inputs))
    assert same(ask(client, "eager", inputs, brisk_accuracy=str(MODEST)), by_the_exit(inputs))


def test_where_triton_keeps_answers_none_comes_early(client: http.InferenceServerClient) -> None:
    """Its cache goes by inputs alone: a request that allows no early answer would get one."""
    wait_for_caches(client, "eager")  # all models were loaded before any caches
    for seed in range(20):
        inputs = images(1, seed=seed)
        assert same(ask(client, "cached", inputs), by_the_model(inputs))


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_in_joined_batches_every_request_gets_its_own_rows(
    server: TritonServer, client: http.InferenceServerClient, rows: int
) -> None:
    """Fifteen at once, by Triton's dynamic batching: hard rows, easy rows, and both."""
    model = MIXED[0]
    kinds = [
        model.easy[:rows],
        model.hard[:rows],
        np.concatenate([model.easy, model.hard])[-rows - 4 :],
    ]
    whole = ask(client, "joined", kinds[0], brisk_early_exit=False)
    wait_until(lambda: not same(ask(client, "joined", kinds[0]), whole), "an answer of the caches")
    alone = [ask(client, "joined", kind) for kind in kinds]
    assert same(alone[1], ask(client, "joined", kinds[1], brisk_early_exit=False))

    def one(number: int) -> None:
        kind = number % 3
        with http.InferenceServerClient(server.endpoints.http) as own:
            found = ask(own, "joined", kinds[kind])
        assert same(found, alone[kind]), f"request {number}, of kind {kind}"

    for _ in range(5):
        with ThreadPoolExecutor(15) as pool:
            list(pool.map(one, range(15)))


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"brisk_early_exit": "maybe"}, "brisk_early_exit must be true or false"),
        ({"brisk_accuracy": "1.5"}, "brisk_accuracy must be a number above 0 and at most 1"),
        ({"brisk_accuracy": "high"}, "brisk_accuracy must be a number above 0 and at most 1"),
    ],
)
def test_a_wrong_parameter_is_refused(
    client: http.InferenceServerClient, parameters: dict[str, object], text: str
) -> None:
    with pytest.raises(InferenceServerException, match=text):
        ask(client, "eager", images(1), **parameters)


@pytest.mark.parametrize("model", ["damaged", "stale"])
def test_caches_that_do_not_fit_are_ignored_and_the_model_served(
    client: http.InferenceServerClient, model: str
) -> None:
    wait_for_caches(client, "eager")  # all models were loaded before any caches
    for seed in range(5):
        inputs = images(2, seed=seed)
        assert same(ask(client, model, inputs), by_the_model(inputs))


def test_the_audit_switches_off_an_exit_that_breaks_its_promise(
    client: http.InferenceServerClient,
) -> None:
    wait_for_caches(client, "audited")
    inputs = images(8, seed=11)
    expected = by_the_model(inputs)

    def is_off() -> bool:
        return same(ask(client, "audited", inputs), expected)

    # Not as fast as it goes: audits get only the processors' time that requests leave.
    with TIMED:
        wait_until(is_off, "the end of the exit", patience_s=120, every_s=0.02)


def test_metrics_tell_hits_audits_and_what_they_led_to(
    server: TritonServer, client: http.InferenceServerClient
) -> None:
    """After the test before, which asks until the exit of "audited" is switched off."""
    wait_for_caches(client, "eager")
    rows = 5
    ask(client, "eager", images(rows))

    def is_told(found: Series) -> bool:
        eager = {"model": "eager", "version": "1"}
        hits = value(found, "brisk_early_answers_total", **eager)
        return hits >= rows and value(found, "brisk_cached_rows_total", **eager) >= hits

    wait_for(server, is_told)
    audited = {"model": "audited", "version": "1"}
    found = wait_for(
        server, lambda found: value(found, "brisk_switched_off_exits_total", **audited) == 1
    )
    assert value(found, "brisk_audited_answers_total", verdict="differs", **audited) > 0
    assert value(found, "brisk_switched_off_exits_total", model="damaged") == 0
