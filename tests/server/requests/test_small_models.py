"""Small models that their stubs compute themselves, and requests that travel together."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from brisk.segments.frame import run_serially
from brisk.segments.prepared.form import PreparedModel, find_prepared
from brisk.segments.starting import open_warm_program
from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient, Transport
from support.server.entries import ANY_CLASS, make_model, write_entry
from support.server.running import StartServer
from support.server.scraping import Series, scrape, value, wait_for
from support.server.small_models import (
    BATCHING,
    COMPUTED,
    HOT,
    ONE_INSTANCE,
    SIGNATURE,
    WEIGHTS,
    WIDE,
    WIDTH,
    computed,
    environment_of,
    expected,
    heat,
    rows,
    small,
)
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.server, pytest.mark.timing]

PICKING = (
    f'backend: "brisk" max_batch_size: 8 {ONE_INSTANCE} '
    'input [ { name: "x" data_type: TYPE_INT64 dims: [ 1 ] } ] '
    f'output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 1, {WIDTH} ] }} ] '
)
COUNTING = (
    f'backend: "brisk" {ONE_INSTANCE} output [ {{ name: "y" {WIDE} }} ] '
    f'input [ {{ name: "x" {WIDE} }}, {{ name: "n" data_type: TYPE_INT64 dims: [ 1 ] }} ] '
)
BOTH = (
    f'backend: "brisk" max_batch_size: 8 {ONE_INSTANCE} '
    f'input [ {{ name: "a" {WIDE} }}, {{ name: "b" {WIDE} }} ] '
    f'output [ {{ name: "sub" {WIDE} }}, {{ name: "add" {WIDE} }} ] '
)


def picking() -> onnx.ModelProto:
    """Rows of a table by their numbers, where a number may be none of the table's."""
    return make_model(
        [helper.make_node("Gather", ["w", "x"], ["y"])],
        [("x", TensorProto.INT64, ("batch", 1))],
        [("y", TensorProto.FLOAT, ("batch", 1, WIDTH))],
        [("w", WEIGHTS)],
    )


def counting() -> onnx.ModelProto:
    """Adds one to ``x`` so often as ``n`` says: a request may take as long as it likes."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["goes"]),
            helper.make_node("Add", ["sum", "one"], ["added"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("place", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, [WIDTH]),
        ],
        [
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("added", TensorProto.FLOAT, [WIDTH]),
        ],
    )
    return make_model(
        [
            helper.make_node("Squeeze", ["n"], ["times"]),
            helper.make_node("Loop", ["times", "", "x"], ["y"], body=body),
        ],
        [("x", TensorProto.FLOAT, (WIDTH,)), ("n", TensorProto.INT64, (1,))],
        [("y", TensorProto.FLOAT, (WIDTH,))],
        [("one", np.ones(1, np.float32))],
    )


def both() -> onnx.ModelProto:
    """Two inputs, two outputs."""
    shape = ("batch", WIDTH)
    return make_model(
        [helper.make_node(kind, ["a", "b"], [kind.lower()]) for kind in ("Sub", "Add")],
        [("a", TensorProto.FLOAT, shape), ("b", TensorProto.FLOAT, shape)],
        [("sub", TensorProto.FLOAT, shape), ("add", TensorProto.FLOAT, shape)],
        [],
    )


@pytest.fixture
def client(server: TritonServer) -> Iterator[InferenceClient]:
    with InferenceClient(server.endpoints.grpc or "", Transport.GRPC) as made:
        yield made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small-models")


@pytest.fixture(scope="module")
def server(start_shared: StartServer, place: Path) -> TritonServer:
    repository = place / "models"
    write_entry(repository, "small", small(), SIGNATURE)
    write_entry(repository, "batched", small(), SIGNATURE + "dynamic_batching { } ")
    write_entry(repository, "urgent", small(), SIGNATURE + ANY_CLASS)
    write_entry(repository, "awaited", small(), SIGNATURE + ANY_CLASS + "dynamic_batching { } ")
    write_entry(repository, "joined", small(), SIGNATURE + BATCHING)
    write_entry(repository, "picking", picking(), PICKING + BATCHING)
    write_entry(repository, "steps", small(), SIGNATURE + "sequence_batching { direct { } } ")
    write_entry(repository, "counting", counting(), COUNTING)
    write_entry(repository, "both", both(), BOTH + BATCHING)
    write_entry(repository, "mortal", small(), SIGNATURE)
    return start_shared(repository, (), environment_of(place))


def answers(folder: Path, name: str, x: np.ndarray) -> list[bytes]:
    """Of all sessions that the model's prepared form may be computed by."""
    environment = {"BRISK_CACHE_DIR": str(folder / "cache")}
    model = folder / "models" / name / "1" / "model.onnx"
    found = find_prepared(model, environment=environment)
    assert found is not None
    form = PreparedModel(found, model, 2, environment=environment)
    programs = [open_warm_program(form), open_warm_program(form, form.open_for_a_row)]
    return [run_serially(each, {"x": x})["y"].tobytes() for each in programs]


def statistics(server: TritonServer, name: str) -> dict[str, Any]:
    """Triton's own."""
    place = f"http://{server.endpoints.http}/v2/models/{name}/stats"
    with urllib.request.urlopen(place, timeout=10) as page:
        (found,) = json.load(page)["model_stats"]
    return dict(found)


def answered(server: TritonServer, name: str) -> int:
    """The requests that Triton has answered."""
    return int(statistics(server, name)["inference_stats"]["success"]["count"])


def stub_of(server: TritonServer, name: str) -> int:
    """The process that computes it."""
    series = [dict(labels) for metric, labels in scrape(server) if metric == COMPUTED]
    (stub,) = {labels["stub"] for labels in series if labels["model"] == name}
    return int(stub)


def test_a_hot_small_model_is_computed_by_its_stub_as_a_worker_computes_it(
    server: TritonServer, client: InferenceClient, place: Path
) -> None:
    asked = [rows(1, seed) for seed in range(9)]
    heat(server, client)
    before = computed(server, "small")
    by_stub = [client.infer("small", {"x": x})["y"] for x in asked]
    by_worker = [
        client.infer("small", {"x": x}, parameters={"brisk_class": "besteffort"})["y"]
        for x in asked
    ]
    for x, y, other in zip(asked, by_stub, by_worker, strict=True):
        np.testing.assert_allclose(y, expected(x), rtol=1e-4, atol=1e-5)
        assert y.tobytes() in answers(place, "small", x)
        # the worker of best effort starts now: its first session may not pack the weights yet
        np.testing.assert_allclose(y, other, rtol=1e-5, atol=1e-6)
    least = before + len(asked)
    found = wait_for(server, lambda series: value(series, COMPUTED, model="small") >= least)
    assert value(found, "brisk_errors_total", model="small") == 0


def test_rows_that_come_together_are_answered_wherever_they_are_computed(
    server: TritonServer, client: InferenceClient
) -> None:
    heat(server, client)
    heat(server, client, "batched")
    for name in ("small", "batched"):
        for count in (2, 3, 8):
            y = client.infer(name, {"x": rows(count)})["y"]
            np.testing.assert_allclose(y, expected(rows(count)), rtol=1e-4, atol=1e-5)
    before = computed(server, "batched")
    client.infer("batched", {"x": rows(8)})
    wait_for(server, lambda series: value(series, COMPUTED, model="batched") > before)


def test_what_does_not_fit_is_refused_as_by_the_worker(
    server: TritonServer, client: InferenceClient
) -> None:
    heat(server, client)
    client.infer("small", {"x": rows()}, parameters={"brisk_class": "besteffort"})
    with pytest.raises(InferenceServerException, match="brisk_clas"):
        client.infer("small", {"x": rows()}, parameters={"brisk_clas": "normal"})
    y = client.infer("small", {"x": rows(3)})["y"]
    np.testing.assert_allclose(y, expected(rows(3)), rtol=1e-4, atol=1e-5)


def test_a_model_whose_requests_may_be_real_time_stays_in_the_worker(
    server: TritonServer, client: InferenceClient
) -> None:
    heat(server, client)
    for _ in range(HOT + HOT // 2):  # the first of them before it is warm
        client.infer("urgent", {"x": rows()})
    assert computed(server, "urgent") == 0


def test_steps_of_sequences_stay_in_the_worker(server: TritonServer, place: Path) -> None:
    asked = InferInput("x", [1, WIDTH], "FP32").set_data_from_numpy(rows())
    file, made = place / "models/steps/1/model.onnx", environment_of(place)
    with TIMED:
        wait_until(lambda: find_prepared(file, environment=made) is not None, "its form")
    with InferenceServerClient(server.endpoints.grpc or "") as client:
        for number in range(3 * HOT):
            time.sleep(0.004)  # in the three seconds that it takes any other model is offered
            found = client.infer("steps", [asked], sequence_id=7, sequence_start=not number)
            np.testing.assert_allclose(found.as_numpy("y"), expected(rows()), rtol=1e-4, atol=1e-5)
    assert computed(server, "steps") == 0


def test_a_stub_that_dies_of_its_model_does_it_once(
    server: TritonServer, client: InferenceClient, place: Path
) -> None:
    heat(server, client, "mortal")
    notes = place / "cache" / "stub-deaths"
    assert not notes.exists() or not any(notes.iterdir())
    os.kill(stub_of(server, "mortal"), signal.SIGKILL)
    with TIMED:
        wait_until(lambda: notes.is_dir() and any(notes.iterdir()), "the note")
    assert "has died while it computed the model itself" in server.log_text()


@pytest.mark.parametrize("is_hot", [False, True], ids=["by the worker", "by the stub"])
def test_requests_that_come_at_once_travel_together_and_get_their_own_rows(
    server: TritonServer, client: InferenceClient, *, is_hot: bool
) -> None:
    if is_hot:
        heat(server, client, "joined", {"x": rows(8)})
    asked = answered(server, "joined")
    requests = "brisk_requests_total"
    before = wait_for(server, lambda series: value(series, requests, model="joined") >= asked)

    def ask(seed: int) -> None:
        x = rows(1 + seed % 2, seed)
        with InferenceClient(server.endpoints.grpc or "", Transport.GRPC) as own:
            for _ in range(5):
                y = own.infer("joined", {"x": x})["y"]
                np.testing.assert_allclose(y, expected(x), rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, range(24)))

    def more(series: Series, name: str) -> float:
        return value(series, name, model="joined") - value(before, name, model="joined")

    found = wait_for(server, lambda series: more(series, requests) >= 120)
    assert more(found, requests) == 120
    assert more(found, "brisk_request_seconds_count") == 120
    assert more(found, COMPUTED) == (120 if is_hot else 0)


def test_execute_waits_for_short_runs_so_that_triton_joins_what_comes_meanwhile(
    server: TritonServer,
) -> None:
    def ask(seed: int) -> None:
        with InferenceClient(server.endpoints.grpc or "", Transport.GRPC) as own:
            for _ in range(50):
                y = own.infer("awaited", {"x": rows(1, seed)})["y"]
                np.testing.assert_allclose(y, expected(rows(1, seed)), rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, range(24)))
    found = statistics(server, "awaited")
    assert int(found["inference_count"]) == 24 * 50
    assert int(found["execution_count"]) < 0.7 * 24 * 50
    assert computed(server, "awaited") == 0


def test_joined_requests_get_the_outputs_that_they_ask_for(
    server: TritonServer, client: InferenceClient
) -> None:
    heat(server, client, "both", {"a": rows(8), "b": rows(8)})
    a, b = rows(2, 5), rows(2, 6)
    expected_of = {"sub": a - b, "add": a + b}
    asked = [["sub", "add"], ["add"], ["sub"], None]

    def ask(number: int) -> None:
        wanted = asked[number % 4] if number < 16 else ["add"]
        with InferenceClient(server.endpoints.grpc or "", Transport.GRPC) as own:
            for _ in range(5):
                found = own.infer("both", {"a": a, "b": b}, outputs=wanted)
                assert sorted(found) == sorted(wanted or expected_of)
                for name, array in found.items():
                    np.testing.assert_allclose(array, expected_of[name], rtol=1e-5, atol=1e-6)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, range(32)))


def test_what_takes_too_long_in_its_stub_is_computed_by_the_worker_from_then_on(
    server: TritonServer, client: InferenceClient
) -> None:
    x = rows()[0]
    once = {"x": x, "n": np.array([1], np.int64)}
    heat(server, client, "counting", once)
    times = 400_000  # a second or two, far longer than a stub computes
    y = client.infer("counting", {"x": x, "n": np.array([times], np.int64)})["y"]
    np.testing.assert_allclose(y, x + times, rtol=0.1)
    before = computed(server, "counting")
    for _ in range(50):
        np.testing.assert_allclose(client.infer("counting", once)["y"], x + 1, rtol=1e-5)
    found = wait_for(
        server, lambda series: value(series, "brisk_requests_total", model="counting") > HOT + 50
    )
    assert value(found, COMPUTED, model="counting") == before


@pytest.mark.parametrize("is_hot", [False, True], ids=["by the worker", "by the stub"])
def test_of_requests_that_fail_together_only_the_bad_one_does(
    server: TritonServer, client: InferenceClient, *, is_hot: bool
) -> None:
    if is_hot:
        heat(server, client, "picking", {"x": np.ones((8, 1), np.int64)})

    def ask(number: int) -> str:
        with InferenceClient(server.endpoints.grpc or "", Transport.GRPC) as own:
            try:
                y = own.infer("picking", {"x": np.array([[number]], np.int64)})["y"]
            except InferenceServerException as error:
                return str(error)
        np.testing.assert_array_equal(y[0, 0], WEIGHTS[number])
        return ""

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, [0, 1, 2, 99, 3, 4, 99, 5] * 4))
    assert ["" if "indices" not in text else "bad" for text in found] == [
        "bad" if number == 99 else "" for number in [0, 1, 2, 99, 3, 4, 99, 5] * 4
    ]
