"""The workload runner against a real server, and against one that goes away."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tritonclient import grpc

from brisk.triton.launch import TritonServer
from brisk_client.urgency import infer
from brisk_client.workload.description import (
    Continuous,
    Dependent,
    Periodic,
    Task,
    Trace,
    Workload,
    WorkloadFailedError,
)
from brisk_client.workload.results import OK
from brisk_client.workload.runner import Counts, run_workload
from support.runtime.runtime_processes import hurry_best_effort
from support.server.entries import ANY_CLASS, deep, doubled, write_entry
from support.server.running import StartServer, runtime_directory

pytestmark = pytest.mark.server

CONFIG = (
    'backend: "brisk" max_batch_size: 64 '
    'input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {width} ] }} ] '
    'output [ {{ name: "{output}" data_type: TYPE_FP32 dims: [ {width} ] }} ] '
)


def read_rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def server(start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:
    repository = tmp_path_factory.mktemp("workloads")
    write_entry(repository, "deep", deep(20, 256), CONFIG.format(width=256, output="y"))
    write_entry(repository, "doubled", doubled(), CONFIG.format(width=4, output="z") + ANY_CLASS)
    return start_shared(repository, ["--disable-auto-complete-config"])


def test_all_loads_run_together_and_every_request_has_its_row(
    server: TritonServer, tmp_path: Path
) -> None:
    tasks = (
        Task("camera", "doubled", Periodic(20.0), job_class="realtime", deadline_s=5.0),
        Task("replay", "doubled", Trace((0.1, 0.2, 0.9)), job_class="normal"),
        Task("after", "doubled", Dependent(("replay",))),
        Task("batch", "deep", Continuous(), job_class="besteffort", batch_size=16),
    )
    seen: list[dict[str, tuple[int, int, int]]] = []
    rows_file = tmp_path / "rows" / "all.csv"
    assert server.endpoints.grpc is not None
    outcome = run_workload(
        Workload(4.0, tasks),
        server.endpoints.grpc,
        rows=rows_file,
        watch=lambda counts: seen.append(dict(counts)),
    )
    rows = read_rows(rows_file)
    found = {task.task: task for task in outcome.tasks}
    assert {row["status"] for row in rows} == {OK}
    assert found["camera"].answered + found["camera"].dropped == 80
    assert found["replay"].answered == found["after"].answered == 3
    batch = [row for row in rows if row["task"] == "batch"]
    pairs = itertools.pairwise(sorted(batch, key=lambda row: int(row["serial"])))
    assert found["batch"].answered == len(batch) > 5
    assert all(int(later["sent_ns"]) >= int(row["done_ns"]) for row, later in pairs)
    assert len(rows) == sum(task.answered for task in outcome.tasks)
    assert not any(generator.errors for generator in outcome.generators)
    assert max(counts.get("camera", (0,))[0] for counts in seen) == found["camera"].answered
    assert [path.name for path in rows_file.parent.iterdir()] == ["all.csv"]


def test_a_model_that_is_not_there_is_named(server: TritonServer) -> None:
    workload = Workload(1.0, (Task("camera", "nothing", Periodic(1.0)),))
    assert server.endpoints.grpc is not None
    with pytest.raises(WorkloadFailedError, match=r"task 'camera': model 'nothing' at .*unknown"):
        run_workload(workload, server.endpoints.grpc)


def test_a_class_that_the_entry_does_not_allow_ends_the_workload_with_the_entry_s_setting(
    server: TritonServer, tmp_path: Path
) -> None:
    """As the command tells it, before the first request that counts."""
    file = tmp_path / "urgent.json"
    task = {
        "id": "camera",
        "class": "realtime",
        "load": {"type": "continuous"},
        "client": {"model_name": "deep"},
    }
    file.write_text(json.dumps({"time": 1, "tasks": [task]}))
    command = [sys.executable, "-m", "brisk.cli", "workload", str(file)]
    done = subprocess.run(
        [*command, "--url", str(server.endpoints.grpc)], capture_output=True, text=True, timeout=60
    )
    told = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert "task 'camera': model 'deep' at" in told
    assert "asks for class 'realtime', but the entry allows 'normal' at most" in told
    assert "brisk_max_class" in told
    assert "Traceback" not in told


def test_a_deadline_that_cannot_be_kept_fails_requests_of_the_run_and_no_warm_up(
    server: TritonServer, tmp_path: Path
) -> None:
    task = Task("camera", "deep", Periodic(5.0), job_class="besteffort", deadline_s=1e-6)
    assert server.endpoints.grpc is not None
    rows_file = tmp_path / "rows.csv"
    run_workload(Workload(1.0, (task,)), server.endpoints.grpc, rows=rows_file)
    statuses = {row["status"] for row in read_rows(rows_file)}
    assert "UNAVAILABLE" in statuses


def test_the_helper_sets_class_and_deadline_on_a_plain_client(server: TritonServer) -> None:
    tensor = grpc.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
    client = grpc.InferenceServerClient(server.endpoints.grpc)
    try:
        answer = infer(client, "doubled", [tensor], job_class="realtime", deadline_s=30.0)
        assert answer.as_numpy("z").tolist() == [[-1.0] * 4]
        long = grpc.InferInput("x", [64, 256], "FP32")
        long.set_data_from_numpy(np.ones((64, 256), np.float32))
        with pytest.raises(grpc.InferenceServerException, match="time-out ran out"):
            infer(client, "deep", [long], job_class="besteffort", deadline_s=1e-6)
    finally:
        client.close()


def have_loaded_best_effort(server: TritonServer, model: str) -> None:
    """Its first such request has been answered, however busy the machine is."""
    client = grpc.InferenceServerClient(server.endpoints.grpc)
    tensor = grpc.InferInput("x", [1, 256], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 256), np.float32))
    with contextlib.closing(client), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(infer, client, model, [tensor], job_class="besteffort")
        while not answer.done():
            hurry_best_effort(runtime_directory(server))
            time.sleep(0.05)
        assert answer.result().as_numpy("y").shape == (1, 256)


def test_a_server_that_goes_away_is_counted_and_the_run_ends(server: TritonServer) -> None:
    """The last one: no other has a server behind it."""
    tasks = (
        Task("camera", "doubled", Periodic(50.0), job_class="realtime"),
        Task("batch", "deep", Continuous(), job_class="besteffort"),
    )
    have_loaded_best_effort(server, "deep")
    gone = threading.Event()

    def kill(counts: Counts) -> None:
        if gone.is_set():
            return
        hurry_best_effort(runtime_directory(server))
        answered = [of_task for of_task, _, _ in counts.values() if of_task]
        if len(answered) == len(tasks):
            gone.set()
            os.kill(server.pid, signal.SIGKILL)

    assert server.endpoints.grpc is not None
    outcome = run_workload(Workload(3.0, tasks), server.endpoints.grpc, watch=kill)
    for task in outcome.tasks:
        assert task.answered > 0
        assert task.failed > 0
    assert any(generator.errors for generator in outcome.generators)
