"""What Triton's metrics endpoint shows of Brisk."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.telemetry.observer import Observer
from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient, Transport
from support.server.entries import ANY_CLASS, deep, doubled, make_model, write_entry
from support.server.running import StartServer, runtime_directory
from support.server.scraping import PATIENCE_S, Series, scrape, value, wait_for

pytestmark = [pytest.mark.server, pytest.mark.timing, pytest.mark.beside]

ROW = np.ones((1, 4), np.float32)


@pytest.fixture(scope="module")
def server(start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:
    repository = tmp_path_factory.mktemp("metrics")
    two = 'backend: "brisk"\ninstance_group [{ count: 2 kind: KIND_CPU }]' + ANY_CLASS
    write_entry(repository, "doubled", doubled(), two)
    write_entry(repository, "deep", deep(60, 256), 'backend: "brisk" max_batch_size: 2048')
    write_entry(repository, "long", deep(60, 256, rows=2048), 'backend: "brisk"' + ANY_CLASS)
    return start_shared(repository, (), {"BRISK_METRICS_INTERVAL_S": "0.2"})


def test_answers_of_both_instances_are_counted_once_with_their_times(server: TritonServer) -> None:
    with InferenceClient(server.endpoints.grpc, Transport.GRPC) as client:
        for _ in range(20):
            client.infer("doubled", {"x": ROW})
        client.infer("doubled", {"x": ROW}, parameters={"brisk_class": "realtime"})
    normal = {"model": "doubled", "version": "1", "class_": "normal"}
    durations = ("brisk_request_seconds", "brisk_queue_seconds", "brisk_execution_seconds")

    def is_told(found: Series) -> bool:
        """A scrape may find what was counted at one time published in part."""
        return all(value(found, f"{name}_count", model="doubled") >= 21 for name in durations)

    found = wait_for(server, is_told)
    assert value(found, "brisk_requests_total", **normal) == 20
    assert value(found, "brisk_requests_total", model="doubled", class_="realtime") == 1
    for name in durations:
        assert value(found, f"{name}_count", **normal) == 20
        assert value(found, f"{name}_bucket", le="+Inf", **normal) == 20
        assert value(found, f"{name}_bucket", le="10", **normal) == 20
        assert 0 < value(found, f"{name}_sum", **normal) < 20 * PATIENCE_S
    runs = wait_for(
        server, lambda found: value(found, "brisk_run_requests_sum", model="doubled") >= 21
    )
    assert 1 <= value(runs, "brisk_run_requests_count", model="doubled") <= 21
    whole = value(found, "brisk_request_seconds_sum", **normal)
    assert whole > value(found, "brisk_execution_seconds_sum", **normal)


def test_errors_are_counted_by_their_kind(server: TritonServer) -> None:
    with InferenceClient(server.endpoints.http, Transport.HTTP) as client:
        for parameters in ({"brisk_class": "urgent"}, {"brisk_clas": "normal"}):
            with pytest.raises(InferenceServerException, match="brisk_class"):
                client.infer("deep", {"x": np.ones((1, 256), np.float32)}, parameters=parameters)
    found = wait_for(server, lambda found: value(found, "brisk_errors_total", model="deep") >= 2)
    assert value(found, "brisk_errors_total", model="deep", kind="invalid_request") == 2
    assert value(found, "brisk_requests_total", model="deep") == 2
    assert value(found, "brisk_request_seconds_count", model="deep") == 0


@pytest.mark.parametrize("clients", [1, 6], ids=["returned", "sent"])
def test_requests_that_fail_while_they_run_are_counted_here_and_not_by_triton(
    clients: int, tmp_path: Path, start_server: StartServer
) -> None:
    """To one client, ``execute`` returns the answer; to several, a sender sends it."""
    asked = 30
    gather = make_model(
        [helper.make_node("Gather", ["table", "row"], ["y"])],
        [("row", TensorProto.INT64, (1,))],
        [("y", TensorProto.FLOAT, (1, 4))],
        [("table", np.zeros((3, 4), np.float32))],
    )
    write_entry(tmp_path / "repository", "table", gather)
    server = start_server(tmp_path / "repository", (), {"BRISK_METRICS_INTERVAL_S": "0.2"})
    with grpc.InferenceServerClient(server.endpoints.grpc) as client:

        def answer(number: int) -> str:
            row = grpc.InferInput("row", [1], "INT64")
            row.set_data_from_numpy(np.array([number]))
            try:
                client.infer("table", [row])
            except InferenceServerException as error:
                return str(error)
            return "well"

        assert {answer(2) for _ in range(asked)} == {"well"}
        with ThreadPoolExecutor(clients) as pool:
            assert all("idx=7" in each for each in pool.map(answer, [7] * asked))
        found = wait_for(  # what Triton counts behind the last answer is counted by then, too
            server, lambda found: value(found, "brisk_errors_total", model="table") >= asked
        )
        counted = client.get_inference_statistics("table", as_json=True)["model_stats"][0]
    assert value(found, "brisk_errors_total", model="table") == asked
    assert value(found, "brisk_requests_total", model="table") == 2 * asked
    assert value(found, "brisk_request_seconds_count", model="table") == asked
    assert int(counted["inference_stats"]["success"]["count"]) == 2 * asked
    assert "count" not in counted["inference_stats"]["fail"]  # docs/metrics.md says so


def test_the_worker_tells_loads_and_what_it_holds(server: TritonServer) -> None:
    found = wait_for(server, lambda found: value(found, "brisk_loads_total") >= 3)
    for model in ("deep", "doubled", "long"):  # the two instances of "doubled" share a session
        told = {"model": model, "cause": "entry", "result": "loaded"}
        assert value(found, "brisk_loads_total", **told) == 1
        assert value(found, "brisk_load_seconds_count", model=model) == 1
    assert value(found, "brisk_worker_restarts_total") == 0
    found = wait_for(server, lambda found: value(found, "brisk_loaded_models") == 3)
    assert value(found, "brisk_held_bytes", what="resident") > 50e6
    assert value(found, "brisk_held_bytes", what="inputs") > 0
    assert value(found, "brisk_model_weight_bytes", model="deep") > 256 * 256 * 4
    assert value(found, "brisk_shared_segments", model="deep") >= 0


def test_cold_starts_tell_their_phases_and_the_solutions_they_loaded(server: TritonServer) -> None:
    found = wait_for(server, lambda found: value(found, "brisk_cold_starts_total") >= 3)
    for model in ("deep", "doubled", "long"):
        assert value(found, "brisk_cold_starts_total", model=model, origin="model") == 1
    for phase in ("parse", "create"):
        took_s = value(found, "brisk_cold_start_seconds_total", origin="model", phase=phase)
        assert 0 < took_s < PATIENCE_S
    for model, least in (("deep", 1), ("doubled", 1), ("long", 3)):  # by segments
        assert value(found, "brisk_loaded_layers_total", model=model, origin="model") >= least
    assert value(found, "brisk_loaded_layers_total", origin="artefact") == 0


def test_preemptions_and_the_gates_closures_are_counted_by_class(server: TritonServer) -> None:
    """Until a real-time request has met a normal run, and best-effort work beside both."""
    ended = threading.Event()

    def ask(job_class: str) -> None:
        with InferenceClient(server.endpoints.grpc, Transport.GRPC) as own:
            while not ended.is_set():
                x = np.ones((2048, 256), np.float32)
                own.infer("long", {"x": x}, parameters={"brisk_class": job_class})

    def is_told(found: Series) -> bool:
        client.infer("doubled", {"x": ROW}, parameters={"brisk_class": "realtime"})
        realtime = {"model": "doubled", "version": "1", "class_": "realtime"}
        return (
            value(found, "brisk_preemptions_total", **realtime) > 0
            and value(found, "brisk_preemption_seconds_count", **realtime) > 0
            and value(found, "brisk_gate_closures_total") > 0
        )

    with (
        ThreadPoolExecutor(2) as pool,
        InferenceClient(server.endpoints.grpc, Transport.GRPC) as client,
    ):
        asking = [pool.submit(ask, job_class) for job_class in ("normal", "besteffort")]
        try:
            found = wait_for(server, is_told)
        finally:
            ended.set()
        for each in asking:
            each.result(timeout=60)
    normal = {"model": "long", "class_": "normal"}
    assert value(found, "brisk_preemptions_total", **normal) == 0
    wait_for(server, lambda found: value(found, "brisk_loaded_models", worker="background") == 1)


def test_every_series_belongs_to_one_stub(server: TritonServer) -> None:
    found = wait_for(server, lambda found: value(found, "brisk_loads_total") >= 2)
    for _, labels in found:
        assert [key for key, _ in labels].count("stub") == 1
    workers = [dict(labels)["worker"] for name, labels in found if name == "brisk_loaded_models"]
    assert sorted(workers) == ["background", "foreground"], "one stub tells what a worker holds"


def test_a_workers_restart_is_counted_and_its_successor_adds_to_what_it_told(
    server: TritonServer,
) -> None:
    loads = value(scrape(server), "brisk_loads_total", model="deep")
    assert loads >= 1
    with Observer(RuntimePaths(runtime_directory(server), "cpu"), Role.FOREGROUND) as observer:
        os.kill(observer.pid, signal.SIGKILL)
    found = wait_for(server, lambda found: value(found, "brisk_loads_total", model="deep") > loads)
    assert value(found, "brisk_worker_restarts_total", worker="foreground") == 1
    assert value(found, "brisk_loads_total", model="deep", cause="restart") >= 1

    def is_told_by_one(found: Series) -> bool:
        """Whom the new worker did not choose withdraws what it told of the old one."""
        holders = [labels for name, labels in found if name == "brisk_loaded_models"]
        return sum(("worker", "foreground") in labels for labels in holders) == 1

    wait_for(server, is_told_by_one)


COMPLETE = (
    'backend: "brisk" input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ] '
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] }, '
    '{ name: "z" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]'
)


def test_models_that_come_and_go_while_metrics_are_published_take_no_others_series_with_them(
    start_server: StartServer, tmp_path: Path
) -> None:
    """Triton frees a series with the first stub that gives it back, whoever else uses it."""
    for name in ("stays", "first", "second"):
        write_entry(tmp_path / "repository", name, doubled(), COMPLETE)
    options = (
        "--model-control-mode=explicit",
        "--load-model=first",
        "--disable-auto-complete-config",
    )
    server = start_server(tmp_path / "repository", options, {"BRISK_METRICS_INTERVAL_S": "0.02"})
    with (
        InferenceClient(server.endpoints.grpc, Transport.GRPC) as client,
        http.InferenceServerClient(server.endpoints.http, network_timeout=60.0) as control,
    ):
        # The stub of "first" is the one that is told the worker's news.
        wait_for(server, lambda found: value(found, "brisk_loads_total", model="first") == 1)
        control.load_model("stays")
        client.infer("stays", {"x": ROW})

        def come_and_go(name: str) -> None:
            with (
                InferenceClient(server.endpoints.grpc, Transport.GRPC) as own_client,
                http.InferenceServerClient(server.endpoints.http, network_timeout=60.0) as own,
            ):
                for _ in range(5):
                    own.load_model(name)
                    own_client.infer(name, {"x": ROW})
                    time.sleep(0.05)
                    own.unload_model(name)

        control.unload_model("first")
        wait_for(server, lambda found: value(found, "brisk_loads_total", model="first") == 1)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(come_and_go, ("first", "second")))
        client.infer("stays", {"x": ROW})
        # An unload ends after it was answered; then the model's requests are gone.
        wait_for(server, lambda found: value(found, "brisk_requests_total") == 2)

        def is_told_anew(found: Series) -> bool:
            """Whoever told it before has gone."""
            names = ("first", "second", "stays")
            return all(value(found, "brisk_loads_total", model=name) >= 1 for name in names)

        wait_for(server, is_told_anew)
        assert server.returncode is None
