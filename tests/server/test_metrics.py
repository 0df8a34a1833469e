"""What Triton's metrics endpoint shows of Brisk."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from entries import deep, doubled, write_entry
from running import running_server
from tritonclient import http
from tritonclient.utils import InferenceServerException

from brisk.server.launch import TritonServer
from brisk.server.locate import ServerInstallation
from brisk_client.inference import InferenceClient, Transport

pytestmark = pytest.mark.server

PATIENCE_S = 30.0
_LINE = re.compile(r"^(brisk_\w+)(?:\{(.*)\})? (\S+)$")

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def server(
    installation: ServerInstallation,
    backends: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("metrics")
    repository = folder / "repository"
    two = 'backend: "brisk"\ninstance_group [{ count: 2 kind: KIND_CPU }]'
    write_entry(repository, "doubled", doubled(), two)
    write_entry(repository, "deep", deep(60, 256), 'backend: "brisk"')
    variables = {"BRISK_METRICS_INTERVAL_S": "0.2"}
    with running_server(
        installation, repository, backends, folder / "log", environment=variables
    ) as running:
        yield running


def scrape(server: TritonServer) -> Series:
    with urllib.request.urlopen(f"http://{server.endpoints.metrics}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    found: Series = {}
    for line in lines:
        if matched := _LINE.match(line):
            labels = re.findall(r'(\w+)="([^"]*)"', matched[2] or "")
            found[matched[1], frozenset(labels)] = float(matched[3])
    return found


def value(found: Series, name: str, **labels: str) -> float:
    """The sum over all series that have these labels."""
    wanted = {(key.rstrip("_"), each) for key, each in labels.items()}
    return sum(each for (own, has), each in found.items() if own == name and wanted <= has)


def wait_for(server: TritonServer, condition: Callable[[Series], bool]) -> Series:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition(found := scrape(server)):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.1)
    return found


def test_answers_of_both_instances_are_counted_once_with_their_times(server: TritonServer) -> None:
    x = np.ones((1, 4), np.float32)
    with InferenceClient(server.endpoints.grpc, Transport.GRPC) as client:
        for _ in range(20):
            client.infer("doubled", {"x": x})
        client.infer("doubled", {"x": x}, parameters={"brisk_class": "realtime"})
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


def test_the_worker_tells_loads_and_what_it_holds(server: TritonServer) -> None:
    found = wait_for(server, lambda found: value(found, "brisk_loads_total") >= 2)
    for model in ("deep", "doubled"):  # the two instances of "doubled" share a session
        assert value(found, "brisk_loads_total", model=model, result="loaded") == 1
        assert value(found, "brisk_load_seconds_count", model=model) == 1
    assert value(found, "brisk_worker_restarts_total") == 0
    found = wait_for(server, lambda found: value(found, "brisk_loaded_models") == 2)
    assert value(found, "brisk_held_bytes", what="resident") > 50e6
    assert value(found, "brisk_held_bytes", what="inputs") > 0


def test_every_series_belongs_to_one_stub(server: TritonServer) -> None:
    found = wait_for(server, lambda found: value(found, "brisk_loads_total") >= 2)
    for _, labels in found:
        assert [key for key, _ in labels].count("stub") == 1
    loads = {dict(labels)["stub"] for name, labels in found if name == "brisk_loads_total"}
    assert len(loads) == 1, "a worker's news are told to one stub of a server"


COMPLETE = (
    'backend: "brisk" input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ] '
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] }, '
    '{ name: "z" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]'
)


def test_models_that_come_and_go_while_metrics_are_published_take_no_others_series_with_them(
    installation: ServerInstallation, backends: Path, tmp_path: Path
) -> None:
    """Triton frees a series with the first stub that gives it back, whoever else uses it."""
    for name in ("stays", "first", "second"):
        write_entry(tmp_path / "repository", name, doubled(), COMPLETE)
    options = (
        "--model-control-mode=explicit",
        "--load-model=first",
        "--disable-auto-complete-config",
    )
    variables = {"BRISK_METRICS_INTERVAL_S": "0.02"}
    x = np.ones((1, 4), np.float32)
    with (
        running_server(
            installation, tmp_path / "repository", backends, tmp_path / "log", options, variables
        ) as server,
        InferenceClient(server.endpoints.grpc, Transport.GRPC) as client,
        http.InferenceServerClient(server.endpoints.http, network_timeout=60.0) as control,
    ):
        # The stub of "first" is the one that is told the worker's news.
        wait_for(server, lambda found: value(found, "brisk_loads_total", model="first") == 1)
        control.load_model("stays")
        client.infer("stays", {"x": x})

        def come_and_go(name: str) -> None:
            with (
                InferenceClient(server.endpoints.grpc, Transport.GRPC) as own_client,
                http.InferenceServerClient(server.endpoints.http, network_timeout=60.0) as own,
            ):
                for _ in range(5):
                    own.load_model(name)
                    own_client.infer(name, {"x": x})
                    time.sleep(0.05)
                    own.unload_model(name)

        control.unload_model("first")
        wait_for(server, lambda found: value(found, "brisk_loads_total", model="first") == 1)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(come_and_go, ("first", "second")))
        client.infer("stays", {"x": x})
        # An unload ends after it was answered; then the model's requests are gone.
        wait_for(server, lambda found: value(found, "brisk_requests_total") == 2)
        wait_for(server, lambda found: value(found, "brisk_loads_total", model="first") > 1)
        assert server.returncode is None
