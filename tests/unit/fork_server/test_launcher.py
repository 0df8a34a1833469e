"""The launcher beside a fork server of this interpreter's and a script in the stub's place."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import brisk
from brisk.fork_server.build import LAUNCHER, place_launchers
from brisk.fork_server.server import STUBS_END_S
from brisk.fork_server.start import LISTENER_VARIABLE
from brisk.protocol.stub_process import birth_of
from support.waiting import wait_until

PACKAGE = Path(brisk.__file__).resolve().parent.parent

STUB = f"""#!{sys.executable}
import os, socket, sys
listener = os.environ.get("{LISTENER_VARIABLE}")
name = socket.socket(fileno=int(listener)).getsockname().decode()[1:] if listener else ""
print(sys.argv[0], sys.argv[6], name)
sys.exit(5)
"""

FORK_SERVER = """
import os, socket, sys, time
from brisk.fork_server.server import ForkServer

listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("\\0" + sys.argv[1])
listener.listen()
server = ForkServer(listener, int(sys.argv[2]))
print("listening", flush=True)
fork, refusals = os.fork, int(sys.argv[4])

def fork_unless_refused():
    global refusals
    refusals -= 1
    if refusals >= 0:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()

os.fork = fork_unless_refused

def become(arguments, launcher):
    line = b" ".join([b"%d %d" % (os.getpid(), launcher), *arguments])
    os.write(1, line + b"\\n")  # at once: stubs of two launchers write to one pipe

if server.serve(become):
    time.sleep(float(sys.argv[3]))
    os._exit(7)
"""


@pytest.fixture
def backend(tmp_path: Path) -> Path:
    """Return the launcher's backend, in a directory of backends with Triton's own stub: a
    script."""
    for name in ("brisk", "python"):
        (tmp_path / name).mkdir()
    stub = tmp_path / "python" / LAUNCHER
    stub.write_text(STUB)
    stub.chmod(0o755)
    if not place_launchers([tmp_path / "brisk"]):
        pytest.skip("there is no C++ compiler")
    return tmp_path / "brisk"


def command(backend: Path, server: int) -> list[str]:
    """Return the command line of a stub, like Triton's but for the names."""
    first = [str(backend / LAUNCHER), "/models/m/1/model.py", "region", "1", "1", str(server)]
    return [*first, str(backend), "336", "m_0", str(backend)]


def start(
    backend: Path, server: int, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(backend, server),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )


def said_alone(
    backend: Path, server: int, environment: Mapping[str, str] | None = None
) -> list[str]:
    """Return the script's words where there is no fork server."""
    with start(backend, server, environment) as launched:
        assert launched.stdout is not None
        words = launched.stdout.read().split()
    assert launched.returncode == 5
    return words


@contextlib.contextmanager
def fork_server(
    backend: Path, server: int, stub_lives_s: float, refusals: int = 0
) -> Iterator[subprocess.Popen[str]]:
    socket = said_alone(backend, server)[2]
    numbers = map(str, (server, stub_lives_s, refusals))
    arguments = [sys.executable, "-c", FORK_SERVER, socket, *numbers]
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        try:
            yield process
        finally:
            process.kill()


def introduced(process: subprocess.Popen[str]) -> tuple[int, int, list[str]]:
    """Return the next stub's process number, its launcher's, and its command line."""
    assert process.stdout is not None
    stub, launcher, *arguments = process.stdout.readline().split()
    return int(stub), int(launcher), arguments


def is_alive(process: int) -> bool:
    return birth_of(process) is not None


def test_without_arguments_the_status_is_what_triton_takes_for_an_executable(
    backend: Path,
) -> None:
    assert subprocess.run([backend / LAUNCHER]).returncode == 1


def test_without_a_fork_server_triton_s_own_stub_runs_with_its_own_folder(backend: Path) -> None:
    python = backend.parent / "python"
    assert said_alone(backend, os.getpid())[:2] == [str(python / LAUNCHER), str(python)]


def test_switched_off_no_fork_server_is_asked_for(backend: Path) -> None:
    assert len(said_alone(backend, os.getpid(), {"BRISK_FORK_STUBS": "0"})) == 2


def test_a_command_line_of_another_form_goes_to_triton_s_own_stub_as_it_is(backend: Path) -> None:
    line = command(backend, os.getpid())
    line[6] = "elsewhere"
    ended = subprocess.run(line, capture_output=True, text=True)
    assert ended.returncode == 5
    assert ended.stdout.split() == [str(backend.parent / "python" / LAUNCHER), "elsewhere"]


@pytest.mark.parametrize(
    "change",
    [{"environment": {"LD_LIBRARY_PATH": "/elsewhere"}}, {"server": os.getppid()}],
    ids=["environment", "server"],
)
def test_what_stubs_take_over_makes_another_fork_server(
    backend: Path, change: dict[str, object]
) -> None:
    usual = {"backend": backend, "server": os.getpid()}
    assert said_alone(**usual) == said_alone(**usual)  # type: ignore[arg-type]
    assert said_alone(**usual)[2] != said_alone(**{**usual, **change})[2]  # type: ignore[arg-type]


def test_where_none_can_be_forked_now_it_is_tried_again_and_then_triton_s_own_stub_runs(
    backend: Path,
) -> None:
    with fork_server(backend, os.getpid(), 0.0, refusals=4) as process:
        said_alone(backend, os.getpid())
        with start(backend, os.getpid()) as launcher:
            introduced(process)
            assert launcher.wait() == 7


def test_a_forked_stub_has_the_command_line_and_its_end_is_the_launcher_s(backend: Path) -> None:
    with (
        fork_server(backend, os.getpid(), 0.0) as process,
        start(backend, os.getpid()) as launcher,
    ):
        stub, launcher_process, arguments = introduced(process)
        assert launcher.wait() == 7
    python = backend.parent / "python"
    expected = command(backend, os.getpid())
    expected[0], expected[6] = str(python / LAUNCHER), str(python)
    assert arguments == expected
    assert launcher_process == launcher.pid
    assert stub not in (launcher.pid, process.pid)


def test_a_launcher_is_not_taken_for_a_stub(backend: Path) -> None:
    with (
        fork_server(backend, os.getpid(), 60.0) as process,
        start(backend, os.getpid()) as launcher,
    ):
        stub, _, _ = introduced(process)
        line = Path(f"/proc/{launcher.pid}/cmdline")
        wait_until(lambda: LAUNCHER.encode() not in line.read_bytes(), "another name", 5)
        assert f"stub {stub}".encode() in line.read_bytes()
        os.kill(stub, signal.SIGKILL)


def test_a_stub_that_is_killed_ends_its_launcher_by_the_same_signal(backend: Path) -> None:
    with (
        fork_server(backend, os.getpid(), 60.0) as process,
        start(backend, os.getpid()) as launcher,
    ):
        stub, _, _ = introduced(process)
        os.kill(stub, signal.SIGSEGV)
        assert launcher.wait(5) == -signal.SIGSEGV


def test_a_killed_launcher_takes_its_stub_along_and_no_other(backend: Path) -> None:
    with (
        fork_server(backend, os.getpid(), 60.0) as process,
        start(backend, os.getpid()) as one,
        start(backend, os.getpid()) as other,
    ):
        stubs = {launcher: stub for stub, launcher, _ in (introduced(process) for _ in "12")}
        one.kill()
        wait_until(lambda: not is_alive(stubs[one.pid]), "the stub's end", 5)
        assert is_alive(stubs[other.pid])
        other.kill()
        wait_until(lambda: not is_alive(stubs[other.pid]), "the other's end", 5)


def test_stubs_outlive_a_killed_fork_server_and_the_next_starts_without(backend: Path) -> None:
    with fork_server(backend, os.getpid(), 1.0) as process:
        with start(backend, os.getpid()) as launcher:
            stub, _, _ = introduced(process)
            process.kill()
            process.wait()
            assert is_alive(stub)
            said_alone(backend, os.getpid())
            assert launcher.wait(10) == 1  # nobody could tell the stub's own status any more
        assert not is_alive(stub)


def test_terminal_signals_do_not_end_a_fork_server_but_its_tritonserver_s_end_does(
    backend: Path,
) -> None:
    with (
        subprocess.Popen(["sleep", "60"]) as triton,
        fork_server(backend, triton.pid, 60.0) as own,
        start(backend, triton.pid) as launcher,
    ):
        stub, _, _ = introduced(own)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            own.send_signal(number)
        with start(backend, triton.pid) as second:
            introduced(own)
            second.kill()
        assert is_alive(stub)
        triton.kill()
        triton.wait()
        os.kill(stub, signal.SIGKILL)
        assert own.wait(5) == 0
        launcher.wait(5)


def test_a_launcher_that_vanishes_unheard_leaves_nothing(backend: Path) -> None:
    """Killed while its stub is being forked, and a peer that says nothing at all."""
    import socket

    with fork_server(backend, os.getpid(), 60.0) as process:
        name = said_alone_name(process)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.connect("\0" + name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hasty:
            hasty.connect("\0" + name)
            hasty.send(b"a\0b")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: not children.read_text().split(), "the end of both", 5)
        with start(backend, os.getpid()) as launcher:
            stub, _, _ = introduced(process)
            os.kill(stub, signal.SIGKILL)
            assert launcher.wait(5) == -signal.SIGKILL


def said_alone_name(process: subprocess.Popen[str]) -> str:
    assert isinstance(process.args, list)
    return process.args[3]


def test_a_stub_that_is_stuck_when_tritonserver_ends_is_ended(backend: Path) -> None:
    with (
        subprocess.Popen(["sleep", "60"]) as server,
        fork_server(backend, server.pid, 60.0) as process,
        start(backend, server.pid) as launcher,
    ):
        stub, _, _ = introduced(process)
        server.kill()
        server.wait()
        wait_until(lambda: not is_alive(stub), "the stub's end", STUBS_END_S + 5)
        assert launcher.wait(5) == -signal.SIGKILL
        assert process.wait(5) == 0
