"""Stubs that are forked from a process with Brisk in memory, under a real Triton."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from tritonclient import http
from tritonclient.utils import InferenceServerException

from brisk.fork_server.build import LAUNCHER
from brisk.protocol.stub_process import parent_of
from brisk.triton.launch import TritonServer
from brisk.triton.locate import ServerInstallation
from brisk_client.inference import InferenceClient, Transport
from support.runtime.runtime_processes import processes_started_in
from support.server.entries import doubled, identity, write_entry
from support.server.running import (
    StartServer,
    private_runtime,
    runtime_directory,
)
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.server, pytest.mark.timing, pytest.mark.beside]

X = np.arange(4, dtype=np.float32).reshape(1, 4)
OPTIONS = ("--model-control-mode=explicit", "--load-model=first")
LATER = ("second", "third", "texts")
"""Models that tests load."""


@pytest.fixture(autouse=True)
def _needs_launcher(backends: Path) -> None:
    if not (backends / "brisk" / LAUNCHER).exists():
        pytest.skip("there is no C++ compiler")


def write_all(repository: Path) -> Path:
    for name in ("first", *LATER[:2]):
        write_entry(repository, name, doubled())
    write_entry(repository, "texts", identity(TensorProto.STRING))
    return repository


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_all(tmp_path / "repository")


@pytest.fixture(scope="module")
def server(start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:
    """Of all tests that leave it as it was: ``control`` unloads what they have loaded."""
    return start_shared(write_all(tmp_path_factory.mktemp("forked-stubs")), OPTIONS)


@pytest.fixture
def control(server: TritonServer) -> Iterator[http.InferenceServerClient]:
    with TIMED:
        wait_until(lambda: listens(server), "a fork server", 30)
    client = http.InferenceServerClient(server.endpoints.http, network_timeout=120.0)
    yield client
    for each in client.get_model_repository_index():
        if each["name"] in LATER and each.get("state") == "READY":
            client.unload_model(each["name"])
    client.close()
    with TIMED:
        wait_until(lambda: not any_of(server, LATER), "the end of what the test has loaded", 30)


def any_of(server: TritonServer, models: tuple[str, ...]) -> bool:
    """Whether any process is a stub of these."""
    lines = str(command_lines(runtime_directory(server)))
    return any(f"/{model}/1/" in lines for model in models)


def command_lines(runtime: Path) -> dict[int, str]:
    lines = {}
    for process in processes_started_in(runtime):
        try:
            line = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
        lines[process] = os.fsdecode(line.rstrip(b"\0 ").replace(b"\0", b" "))
    return lines


def named(server: TritonServer, name: str) -> int | None:
    """A process whose command line begins so."""
    lines = command_lines(runtime_directory(server))
    return next((process for process, line in lines.items() if line.startswith(name)), None)


def listens(server: TritonServer) -> bool:
    """Whether the server has a fork server that launchers can ask.

    The socket alone does not tell: the first stub holds it before.
    """
    return named(server, "brisk: forks stubs") is not None


def stub_of(server: TritonServer, model: str) -> int:
    lines = command_lines(runtime_directory(server))
    (found,) = [
        process
        for process, line in lines.items()
        if line.split(" ")[0].endswith(LAUNCHER) and f"/{model}/1/" in line
    ]
    return found


def is_right(server: TritonServer, model: str) -> bool:
    with InferenceClient(server.endpoints.http, Transport.HTTP) as client:
        return bool(np.array_equal(client.infer(model, {"x": X})["y"], 2 * X))


def test_later_stubs_are_forks_and_answer_like_the_first(
    server: TritonServer, control: http.InferenceServerClient
) -> None:
    fork_server = named(server, "brisk: forks stubs")
    for model in LATER:
        control.load_model(model)
        assert parent_of(stub_of(server, model)) == fork_server
    assert parent_of(stub_of(server, "first")) == server.pid
    assert all(is_right(server, model) for model in ("first", "second", "third"))
    texts = np.array([["a", "bc", "ä"]], dtype=object)
    with InferenceClient(server.endpoints.http, Transport.HTTP) as client:
        said = client.infer("texts", {"x": texts})["y"]
    assert [text.decode() for text in said.ravel()] == ["a", "bc", "ä"]


def test_a_fork_s_environment_directory_and_limits_are_those_of_a_stub_of_triton_s(
    server: TritonServer, control: http.InferenceServerClient
) -> None:
    control.load_model("second")
    one, other = stub_of(server, "first"), stub_of(server, "second")
    for name in ("cwd", "exe", "root", "ns/pid", "ns/ipc"):
        assert os.readlink(f"/proc/{one}/{name}") == os.readlink(f"/proc/{other}/{name}"), name
    for name in ("limits", "oom_score_adj", "cgroup"):
        assert Path(f"/proc/{one}/{name}").read_text() == Path(f"/proc/{other}/{name}").read_text()
    for field in ("SigIgn", "SigCgt", "SigBlk", "Groups", "Umask", "Cpus_allowed"):
        values = [
            next(
                line
                for line in Path(f"/proc/{stub}/status").read_text().splitlines()
                if line.startswith(f"{field}:")
            )
            for stub in (one, other)
        ]
        assert values[0] == values[1]


STUB_MB = 10.0
"""Of memory that is a forked stub's alone: 7 MB on CPython 3.11 with two processors. A stub that
shares nothing has 20."""


def private_mb(process: int) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def test_models_loaded_at_once_share_what_their_stubs_have_in_memory(
    repository: Path, start_server: StartServer
) -> None:
    server = start_server(repository)
    models = ("first", "second", "third", "texts")
    assert all(is_right(server, model) for model in models[:3])
    stubs = [stub_of(server, model) for model in models]
    fork_server = named(server, "brisk: forks stubs")
    forked = [stub for stub in stubs if parent_of(stub) == fork_server]
    assert len(forked) >= len(stubs) - 1  # the first to come starts the fork server
    assert all(private_mb(stub) < STUB_MB for stub in forked), [*map(private_mb, forked)]


def test_an_unloaded_model_leaves_neither_stub_nor_launcher(
    server: TritonServer, control: http.InferenceServerClient
) -> None:
    control.load_model("second")
    assert named(server, "brisk: waits for stub") is not None
    control.unload_model("second")
    with TIMED:
        wait_until(
            lambda: named(server, "brisk: waits for stub") is None, "the launcher's end", 15
        )
    lines = command_lines(runtime_directory(server)).values()
    assert not any("/second/" in line for line in lines)
    assert is_right(server, "first")


def test_a_killed_fork_takes_no_other_along_and_its_model_can_be_loaded_again(
    server: TritonServer, control: http.InferenceServerClient
) -> None:
    for model in ("second", "third"):
        control.load_model(model)
    os.kill(stub_of(server, "second"), signal.SIGKILL)
    assert is_right(server, "third")
    with pytest.raises(InferenceServerException, match="not healthy"):
        is_right(server, "second")
    control.unload_model("second")
    with TIMED:
        wait_until(
            lambda: "/second/" not in str(command_lines(runtime_directory(server))), "its end", 15
        )
    control.load_model("second")
    assert is_right(server, "second")


def test_models_outlive_the_fork_server_and_later_ones_get_another(
    server: TritonServer, control: http.InferenceServerClient
) -> None:
    control.load_model("second")
    fork_server = named(server, "brisk: forks stubs")
    assert fork_server is not None
    os.kill(fork_server, signal.SIGKILL)
    assert is_right(server, "second")
    control.load_model("third")
    assert parent_of(stub_of(server, "third")) == server.pid
    assert is_right(server, "third")
    with TIMED:
        wait_until(lambda: listens(server), "another one", 30)
    control.unload_model("third")
    with TIMED:
        wait_until(
            lambda: "third" not in str(command_lines(runtime_directory(server))), "its end", 15
        )
    control.load_model("third")
    assert parent_of(stub_of(server, "third")) == named(server, "brisk: forks stubs")
    assert is_right(server, "second")


def regions() -> set[str]:
    """The shared memory of servers that this process has started."""
    return {name for name in os.listdir("/dev/shm") if f"brisk_server_{os.getpid()}_" in name}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_nothing_outlives_the_server(
    number: int,
    repository: Path,
    installation: ServerInstallation,
    backends: Path,
    tmp_path: Path,
) -> None:
    with private_runtime() as runtime:
        before = regions()
        server = TritonServer(
            installation,
            repository,
            backends,
            log=tmp_path / "log",
            options=["--exit-timeout-secs=10", *OPTIONS],
            environment={
                **os.environ,
                "BRISK_RUNTIME_DIR": str(runtime),
                "BRISK_IDLE_EXIT_S": "1",
            },
        )
        with server:
            with TIMED:
                wait_until(lambda: listens(server), "a fork server", 30)
            with http.InferenceServerClient(server.endpoints.http, network_timeout=120.0) as own:
                own.load_model("second")
            region = (
                Path("/dev/shm") / command_lines(runtime)[stub_of(server, "second")].split()[2]
            )
            assert region.exists()
            os.kill(server.pid, number)
            with TIMED:
                wait_until(lambda: not processes_started_in(runtime), "the end of all", 30)
            assert not region.exists()
        assert not runtime.exists() or list(runtime.iterdir()) == []
        assert regions() <= before


def test_switched_off_every_stub_is_triton_s(repository: Path, start_server: StartServer) -> None:
    server = start_server(repository, OPTIONS, {"BRISK_FORK_STUBS": "0"})
    with http.InferenceServerClient(server.endpoints.http, network_timeout=120.0) as control:
        control.load_model("second")
    assert parent_of(stub_of(server, "second")) == server.pid
    assert named(server, "brisk: forks stubs") is None
    assert is_right(server, "second")
