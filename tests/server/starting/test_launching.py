"""Starting and stopping a real tritonserver; the models are of Triton's own Python backend."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from brisk.triton.backend_directory import assemble
from brisk.triton.launch import ServerFailedError, TritonServer, server_environment
from brisk.triton.locate import ServerInstallation, locate_server
from support.server.running import Endings, StartServer, private_runtime
from support.server.serve_command import serving

pytestmark = pytest.mark.server

DOUBLER = """
import triton_python_backend_utils as utils

class TritonPythonModel:
    def execute(self, requests):
        arrays = [utils.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        return [utils.InferenceResponse([utils.Tensor("y", array * 2)]) for array in arrays]
"""
BROKEN = """
class TritonPythonModel:
    def initialize(self, arguments):
        raise ValueError("x9")
"""
CONFIGURATION = """
backend: "python"
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def make_repository(directory: Path, source: str = DOUBLER) -> Path:
    model = directory / "doubler" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text(source)
    (directory / "doubler" / "config.pbtxt").write_text(CONFIGURATION)
    return directory


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def group_members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(status[2]) == group and status[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def _without_others(endings: Endings) -> None:
    """Servers of earlier tests, which this process has started, have ended with their regions."""
    endings.await_all()
    _OTHERS.clear()
    _OTHERS.update(regions())


_OTHERS: set[str] = set()
"""Regions of the server that all tests share, where it runs."""


def regions() -> set[str]:
    found = {name for name in os.listdir("/dev/shm") if f"brisk_server_{os.getpid()}_" in name}
    return found - _OTHERS


def test_a_started_server_is_ready_for_this_machine_only_and_leaves_nothing_when_it_stops(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(make_repository(tmp_path / "repository"))
    pid = server.pid
    assert server.is_ready()
    assert len(group_members(pid)) >= 2  # the server and a stub
    assert os.getsid(pid) == os.getsid(0)  # so it is in this process's scheduling group
    assert regions()
    metrics = urllib.request.urlopen(f"http://{server.endpoints.metrics}/metrics", timeout=5)
    with metrics:
        assert b"nv_inference_count" in metrics.read()
    for endpoint in (server.endpoints.http, server.endpoints.grpc, server.endpoints.metrics):
        port = int(endpoint.rpartition(":")[2])
        with socket.socket() as elsewhere:
            elsewhere.settimeout(2)
            assert elsewhere.connect_ex(("127.0.0.2", port)) != 0
    assert server.stop() == 0
    assert not is_alive(pid)
    assert group_members(pid) == []
    assert not regions()
    assert server.stop() is None


def test_a_server_that_cannot_load_a_model_fails_with_the_reason_from_its_log(
    start_server: StartServer, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repository", BROKEN)
    with pytest.raises(ServerFailedError, match=r"(?s)ended with status 1 .*ValueError: x9"):
        start_server(repository)
    assert not regions()


def test_a_server_whose_port_is_taken_fails_and_names_it(
    start_server: StartServer, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupant:
        port = occupant.getsockname()[1]
        with pytest.raises(ServerFailedError, match=f"(?s){port}.*already in use"):
            start_server(make_repository(tmp_path / "repository"), options=[f"--http-port={port}"])


def test_a_server_that_is_not_ready_in_time_says_so_and_is_stopped(
    installation: ServerInstallation, backends: Path, tmp_path: Path
) -> None:
    slow = (
        DOUBLER + "\n    def initialize(self, arguments):\n        import time; time.sleep(30)\n"
    )
    with private_runtime():
        server = TritonServer(
            installation,
            make_repository(tmp_path / "repository", slow),
            backends,
            log=tmp_path / "log",
        )
        server.start()
        pid = server.pid
        try:
            with pytest.raises(ServerFailedError, match="not ready within 1 s"):
                server.wait_ready(timeout_s=1)
        finally:
            server.stop(timeout_s=1)  # it would wait for the model; so it is killed
    assert group_members(pid) == []
    assert not regions()


def test_a_killed_servers_stubs_and_shared_memory_are_removed_by_stop(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(make_repository(tmp_path / "repository"))
    pid = server.pid
    os.kill(pid, signal.SIGKILL)
    assert server.stop() == -signal.SIGKILL
    deadline_s = time.monotonic() + 5
    while group_members(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert group_members(pid) == []
    assert not regions()


def test_a_server_ends_when_the_process_that_started_it_is_killed(
    backends: Path, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repository")
    program = (
        "import pathlib, sys, time\n"
        "from brisk.triton.launch import TritonServer\n"
        "from brisk.triton.locate import locate_server\n"
        "paths = [pathlib.Path(path) for path in sys.argv[1:]]\n"
        "with TritonServer(locate_server(), paths[0], paths[1], log=paths[2]) as server:\n"
        "    print(server.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(repository), str(backends), str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        server = int(starter.stdout.readline())
        assert is_alive(server)
        starter.kill()
    deadline_s = time.monotonic() + 20
    while group_members(server) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert group_members(server) == []


def test_serve_becomes_the_server_and_passes_its_options_through(tmp_path: Path) -> None:
    """``brisk serve`` with explicit model control: nothing is loaded until asked for."""
    options = ["--allow-metrics=false", "--model-control-mode", "explicit"]
    with serving(tmp_path, [make_repository(tmp_path / "repository")], options) as served:
        assert Path(os.readlink(f"/proc/{served.process.pid}/exe")).name == "tritonserver"
        assert set(options) <= set(served.options)
        with pytest.raises(urllib.error.HTTPError, match="HTTP Error 4"):
            served.get("models/doubler/ready")
    assert served.process.returncode == 0


def test_a_system_installation_serves_as_well_with_its_other_backends(
    installation: ServerInstallation, tmp_path: Path
) -> None:
    """The layout of /opt/tritonserver, made of the wheel's files."""
    prefix = tmp_path / "tritonserver"
    python = prefix / "backends" / "python"
    python.mkdir(parents=True)
    for file in installation.python_backend:
        shutil.copy2(file, python)
    (prefix / "backends" / "other").mkdir()
    (prefix / "bin").mkdir()
    shutil.copy2(installation.executable, prefix / "bin")

    system = locate_server(prefix)
    assert not system.embedded
    backends = assemble(tmp_path / "backends", system)
    assert (backends / "other").is_dir()
    with TritonServer(
        system,
        make_repository(tmp_path / "repository"),
        backends,
        log=tmp_path / "log",
        environment=server_environment(installation),
    ) as server:
        assert server.is_ready()
