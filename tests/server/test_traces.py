"""``brisk trace`` on a running server, with Triton's own tracing on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from entries import deep, write_entry
from running import StartServer, runtime_directory

pytestmark = pytest.mark.server


def test_a_request_through_the_server_is_traced_with_tritons_context(
    start_server: StartServer, tmp_path: Path
) -> None:
    write_entry(tmp_path / "repository", "deep", deep(20, 64))
    options = ["mode=opentelemetry", "level=TIMESTAMPS", "rate=1"]
    options.append("opentelemetry,url=http://127.0.0.1:9/v1/traces")  # nobody listens
    server = start_server(
        tmp_path / "repository", options=[f"--trace-config={option}" for option in options]
    )
    command = [sys.executable, "-m", "brisk.cli", "trace", "deep", "--class", "realtime"]
    done = subprocess.run(
        [*command, "--url", str(server.endpoints.http), "--output", str(tmp_path / "trace.json")],
        env={**os.environ, "BRISK_RUNTIME_DIR": str(runtime_directory(server))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    layers = [each for each in events if each.get("cat") == "layers"]
    assert len(layers) >= 1
    assert all("traceparent" in each["args"]["details"] for each in layers)
    (request,) = [each for each in events if each.get("cat") == "requests"]
    assert request["name"] == "deep 1, realtime"
    (asked,) = [each for each in events if each.get("cat") == "client"]
    assert asked["ts"] <= request["ts"]
    assert request["ts"] + request["dur"] <= asked["ts"] + asked["dur"]
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")
