"""``brisk trace`` on a running server, with Triton's own tracing on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tritonclient import http

from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.telemetry.observer import Observer
from brisk.triton.launch import TritonServer
from support.server.entries import ANY_CLASS, deep, write_entry
from support.server.running import StartServer, runtime_directory

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:
    repository = tmp_path_factory.mktemp("traced")
    write_entry(repository, "deep", deep(20, 64), 'backend: "brisk"' + ANY_CLASS)
    traces = ["mode=opentelemetry", "level=TIMESTAMPS", "rate=1"]
    traces.append("opentelemetry,url=http://127.0.0.1:9/v1/traces")  # nobody listens
    options = [f"--trace-config={option}" for option in traces]
    return start_shared(repository, options)


def test_a_clients_trace_goes_on_in_the_worker(server: TritonServer) -> None:
    """By W3C's header, which Triton takes up: its trace's number is that of the worker's spans."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    described = http.InferInput("x", [1, 64], "FP32")
    described.set_data_from_numpy(np.ones((1, 64), np.float32))
    place = RuntimePaths(runtime_directory(server), "cpu")
    with (
        http.InferenceServerClient(server.endpoints.http) as client,
        Observer(place, Role.FOREGROUND) as observer,
    ):
        observer.begin_trace()
        for number in (trace, None):
            headers = {"traceparent": f"00-{number}-00f067aa0ba902b7-01"} if number else None
            client.infer("deep", [described], headers=headers)
        segments = [span for span in observer.end_trace() if span.lane == "layers"]
    requests = list(dict.fromkeys(span.request for span in segments))
    assert len(requests) == 2
    for span in segments:
        assert "traceparent" in span.details
        assert (trace in span.details) == (span.request == requests[0])


def trace(server: TritonServer, model: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "brisk.cli", "trace", model, *options]
    return subprocess.run(
        command,
        env={**os.environ, "BRISK_RUNTIME_DIR": str(runtime_directory(server))},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_a_request_through_the_server_is_traced_with_tritons_context(
    server: TritonServer, tmp_path: Path, port: str
) -> None:
    options = ["--url", str(getattr(server.endpoints, port)), "--shape", "x=2,64"]
    options += ["--class", "realtime", "--output", str(tmp_path / "trace.json")]
    done = trace(server, "deep", *options)
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    segments = [each for each in events if each.get("cat") == "layers"]
    assert len(segments) >= 1
    assert all("traceparent" in each["args"]["details"] for each in segments)
    (request,) = [each for each in events if each.get("cat") == "requests"]
    assert request["name"] == "deep 1, realtime"
    (asked,) = [each for each in events if each.get("cat") == "client"]
    assert asked["ts"] <= request["ts"]
    assert request["ts"] + request["dur"] <= asked["ts"] + asked["dur"]
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")


def test_what_the_server_refuses_is_told_in_one_line(server: TritonServer, tmp_path: Path) -> None:
    url = ("--url", str(server.endpoints.grpc))
    np.savez(tmp_path / "wrong.npz", x=np.ones((1, 7), np.float32))
    for model, options, text in (
        ("absent", (), "the server answers: "),
        ("deep", ("--shape", "y=1,64"), "'deep' has no input 'y'; it has: x"),
        ("deep", ("--data", str(tmp_path / "wrong.npz")), "the server answers: "),
        ("deep", ("--data", str(tmp_path / "absent.npz")), "absent.npz"),
    ):
        done = trace(server, model, *url, *options)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert text in line, line
