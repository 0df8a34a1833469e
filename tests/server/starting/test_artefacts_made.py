"""Artefacts made behind a served model, and the start from them, in a real Triton."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from tritonclient import http

from brisk.segments.prepared.form import find_prepared
from brisk_client.inference import InferenceClient, Transport
from support.runtime.runtime_processes import hurry_helpers
from support.server.entries import doubled, write_entry
from support.server.running import StartServer, runtime_directory
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.server, pytest.mark.timing, pytest.mark.beside]

BUILD_TIMEOUT_S = 120.0
"""It may be made on whatever processors are idle."""


def await_artefact(directory: Path, runtime: Path) -> Path:
    deadline_s = time.monotonic() + BUILD_TIMEOUT_S
    while time.monotonic() < deadline_s:
        found = find_prepared(directory / "1" / "model.onnx")
        if found is not None:
            return found
        hurry_helpers(runtime)
        time.sleep(0.2)
    raise AssertionError(f"no artefact of {directory.name} after {BUILD_TIMEOUT_S:.0f} s")


def test_a_served_model_gets_its_artefact_from_which_the_next_load_and_a_copy_start(
    tmp_path: Path, start_server: StartServer, private_cache: None
) -> None:
    directory = write_entry(tmp_path / "repository", "doubled", doubled())
    server = start_server(
        tmp_path / "repository",
        ("--model-control-mode=explicit", "--load-model=doubled"),
        {"BRISK_ARTEFACTS": "build"},
    )
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    with InferenceClient(server.endpoints.http, Transport.HTTP) as client:
        before = client.infer("doubled", {"x": values})
        artefact = await_artefact(directory, runtime_directory(server))
        control = http.InferenceServerClient(server.endpoints.http, network_timeout=60.0)
        control.load_model("doubled")  # unchanged for Triton, so the model stays as it is
        control.unload_model("doubled")
        log = tmp_path / "tritonserver-1.log"
        wait_until(lambda: "successfully unloaded 'doubled'" in log.read_text(), "its unload")
        control.load_model("doubled")
        after = client.infer("doubled", {"x": values})
        shutil.copytree(directory, tmp_path / "downloaded" / "doubled")
        (tmp_path / "downloaded" / "doubled").rename(tmp_path / "repository" / "copied")
        control.load_model("copied")
        control.close()
        copied = client.infer("copied", {"x": values})
    assert artefact.is_file()
    assert not (directory / "1" / ".brisk").exists()
    for answer in (after, copied):
        assert answer["y"].tolist() == before["y"].tolist()
    assert log.read_text().count("ONNX Runtime from the model, runnable") == 1
    assert log.read_text().count("ONNX Runtime from its artefact, runnable") == 2


def test_a_lazy_entry_is_ready_at_once_and_loaded_by_its_first_request(
    tmp_path: Path, start_server: StartServer
) -> None:
    lazy = 'parameters [ { key: "brisk_load", value: { string_value: "lazy" } } ]'
    write_entry(tmp_path / "repository", "late", doubled(), f'backend: "brisk"\n{lazy}\n')
    server = start_server(tmp_path / "repository")
    log = tmp_path / "tritonserver-1.log"
    assert "is loaded by its first request" in log.read_text()
    assert "runnable after" not in log.read_text()
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    with InferenceClient(server.endpoints.http, Transport.HTTP) as client:
        answers = client.infer("late", {"x": values})
    np.testing.assert_array_equal(answers["y"], values * 2)
    loaded = "1 segment by ONNX Runtime from the model, runnable after"
    with TIMED:
        wait_until(lambda: loaded in log.read_text(), "the load's line in the log")
