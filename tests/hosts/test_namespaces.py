"""Racks come and go, and leave nothing; by root's rights and by any user's."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import brisk
import brisk_bench
import brisk_client
from brisk.errors import InvalidRequestError, UnavailableError
from brisk_bench.fleet.namespaces import (
    NamespaceHost,
    NoNamespacesError,
    Rights,
    rack,
    usable_rights,
)
from brisk_bench.fleet.programs import HostProgram
from brisk_bench.fleet.warden import namespace_of, processes_in
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.hosts

LISTEN = """
import json, socket
server = socket.create_server(("0.0.0.0", 0))
print(json.dumps({"port": server.getsockname()[1]}), flush=True)
connection, peer = server.accept()
print(json.dumps({"peer": peer[0]}), flush=True)
print(json.dumps({"read": connection.recv(1).decode()}), flush=True)
"""
CONNECT = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
print(1, flush=True)
time.sleep(600)
"""
WITH_STRAYS = """
setsid sleep 600 &
sh -c "trap : TERM; echo is there; sleep 600; sleep 600" &
sleep 600
"""

MAKE_AND_WAIT = """
import subprocess, sys, time
from brisk_bench.fleet.namespaces import Rights, rack
from brisk_bench.fleet.warden import namespace_of
with rack(["a", "b"], Rights(sys.argv[1])) as machines:
    shell = machines["a"].popen(["sh", "-c", "setsid sleep 600 & echo; sleep 600"], stdout=-1)
    shell.stdout.readline()
    other = machines["b"].popen(["sleep", "600"])
    print(namespace_of(shell.pid), namespace_of(other.pid), flush=True)
    time.sleep(600)
"""

AS_ANY_USER = """
import os, sys, time
from brisk.errors import UnavailableError
from brisk_bench.fleet.links import Links
from brisk_bench.fleet.namespaces import Rights, rack, usable_rights
from brisk_bench.fleet.warden import namespace_of, processes_in
assert usable_rights() is Rights.ROOTLESS, usable_rights()
with rack(["a", "b"]) as machines:
    links = Links(machines)
    links.shape_all(100)
    sleeper = machines["b"].popen(["sh", "-c", "setsid sleep 600 & echo; sleep 600"], stdout=-1)
    sleeper.stdout.readline()
    number = namespace_of(sleeper.pid)
    assert number != namespace_of(os.getpid())
    deadline_s = time.monotonic() + 10
    while len(machines["b"].processes()) != 3 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert len(machines["b"].processes()) == 3, machines["b"].processes()
    carried = links.measure(rounds=1)
    links.cut(machines["b"])
    links.mend(machines["b"])
assert processes_in({number}) == []
print([round(each.share, 3) for each in carried])
"""


def interfaces() -> list[str]:
    return sorted(name for _, name in socket.if_nameindex())


def start_strays(host: NamespaceHost) -> int:
    """Processes of one group, of another session, and one that cares for no SIGTERM.

    Returns the id of the first of five.
    """
    shell = host.popen(["sh", "-c", WITH_STRAYS], stdout=subprocess.PIPE)
    assert shell.stdout is not None
    assert shell.stdout.readline() == b"is there\n"
    shell.stdout.close()
    wait_until(lambda: len(host.processes()) == 5, f"five processes in {host.name}")
    return shell.pid


def test_hosts_reach_each_other_by_their_addresses(rights: Rights) -> None:
    with rack(["a", "b", "c"], rights) as machines:
        assert [host.address for host in machines.hosts] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
        with HostProgram(machines["b"], [sys.executable, "-c", LISTEN]) as server:
            port = str(server.hear(PATIENCE_S)["port"])
            connect = [sys.executable, "-c", CONNECT, machines["b"].address, port]
            with HostProgram(machines["c"], connect):
                assert server.hear(PATIENCE_S) == {"peer": machines["c"].address}


def test_a_host_has_its_own_interfaces_and_adds_none_outside(rights: Rights) -> None:
    before = interfaces()
    with rack(["a", "b"], rights) as machines:
        names = "import socket; print(sorted(name for _, name in socket.if_nameindex()))"
        assert machines["a"].run([sys.executable, "-c", names]) == "['eth0', 'lo']\n"
        assert interfaces() == before


def test_a_program_has_the_environment_and_the_folder_that_it_is_given(
    rights: Rights, tmp_path: Path
) -> None:
    with rack(["a"], rights) as machines:
        program = machines["a"].popen(
            ["sh", "-c", "echo $PLACE; pwd"],
            env={"PATH": os.environ["PATH"], "PLACE": "here"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
        )
        said, _ = program.communicate(timeout=PATIENCE_S)
    assert said.decode().split() == ["here", str(tmp_path)]


def test_nothing_is_left_of_a_rack(rights: Rights) -> None:
    before = interfaces()
    with rack(["a", "b"], rights) as machines:
        numbers = {namespace_of(start_strays(host)) for host in machines.hosts}
    assert len(numbers - {None, namespace_of(os.getpid())}) == 2
    assert processes_in({number for number in numbers if number}) == []
    assert interfaces() == before


def test_nothing_is_left_after_an_exception(rights: Rights) -> None:
    numbers: set[int] = set()

    def fail_in_a_rack() -> None:
        with rack(["a", "b"], rights) as machines:
            numbers.update(namespace_of(start_strays(host)) or 0 for host in machines.hosts)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_a_rack()
    assert len(numbers - {0}) == 2
    assert processes_in(numbers) == []


def test_nothing_is_left_when_whoever_made_the_rack_is_killed(rights: Rights) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKE_AND_WAIT, rights.value], stdout=subprocess.PIPE
    )
    with maker:
        assert maker.stdout is not None
        numbers = {int(number) for number in maker.stdout.readline().split()}
        try:
            assert len(numbers) == 2
            # three in one host, one in the other, and those that hold them
            wait_until(lambda: len(processes_in(numbers)) == 6, "six processes")
        finally:
            maker.kill()
    wait_until(lambda: processes_in(numbers) == [], "the end of a rack that nobody holds")


def test_nothing_is_left_of_a_rack_that_cannot_be_made(
    rights: Rights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, there, mark = shutil.which("ip"), tmp_path / "there", f"RACK_IN={tmp_path}"
    look = f"grep -ls '{mark}' /proc/[0-9]*/environ > {there}"
    script = f'case "$*" in *-batch*) {look}; echo no such >&2; exit 1;; esac; {real} "$@"'
    pretend(tmp_path, "ip", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(*mark.split("="))
    with pytest.raises(UnavailableError, match="no such"), rack(["a", "b"], rights):
        pytest.fail("it was made")
    # the switch's warden and what holds each host, beside the program itself
    assert len(there.read_text().split()) >= 4
    assert processes_marked(mark) == []


def test_a_killed_process_takes_its_group_along_and_its_peers_hear_of_it(rights: Rights) -> None:
    with rack(["a", "b"], rights) as machines:
        with HostProgram(machines["a"], [sys.executable, "-c", LISTEN]) as server:
            port = str(server.hear(PATIENCE_S)["port"])
            program = machines["b"].popen(
                [sys.executable, "-c", CONNECT, machines["a"].address, port]
            )
            assert server.hear(PATIENCE_S) == {"peer": machines["b"].address}
            machines["b"].kill(program.pid)
            assert program.returncode == -signal.SIGKILL
            assert server.hear(PATIENCE_S) == {"read": ""}
        shell = machines["b"].popen(["sh", "-c", "sleep 600 & echo; wait"], stdout=subprocess.PIPE)
        with shell:
            assert shell.stdout is not None
            shell.stdout.readline()
            assert len(machines["b"].processes()) == 2
            machines["b"].kill(shell.pid)
        wait_until(lambda: machines["b"].processes() == [], "the end of a group")


def test_a_host_kills_only_what_it_has_started(rights: Rights) -> None:
    with rack(["a", "b"], rights) as machines:
        sleeper = machines["a"].popen(["sleep", "600"])
        with pytest.raises(InvalidRequestError, match=f"b started no process {sleeper.pid}"):
            machines["b"].kill(sleeper.pid)
        assert sleeper.poll() is None


@pytest.mark.usefixtures("_any_rights")
def test_a_host_is_asked_for_by_its_name() -> None:
    with rack(["a", "b"]) as machines:
        assert machines["b"] is machines.hosts[1]
        with pytest.raises(InvalidRequestError, match="no host 'c', but a, b"):
            machines["c"]
        with pytest.raises(UnavailableError, match="ended with 3: it is so"):
            machines["a"].run(["sh", "-c", "echo it is so >&2; exit 3"])


@pytest.mark.parametrize("names", [["A"], ["a b"], [""], ["a" * 12], ["a", "a"], []])
def test_a_name_that_is_no_host_s_is_refused(names: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match=r"no name of a host|a name of its own"):
        rack(names).__enter__()


def test_a_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoNamespacesError, match=r"no ip, tc, bridge, .* install iproute2"):
        usable_rights()


def test_what_the_kernel_said_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("ip", "tc", "bridge", "nsenter"):
        pretend(tmp_path, tool, "exit 0")
    pretend(tmp_path, "unshare", "echo unshare failed: Operation not permitted >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    said = r"root: .*Operation not permitted; rootless: .*Operation not permitted"
    with pytest.raises(NoNamespacesError, match=said), rack(["a"]):
        pytest.fail("it was made")


def test_a_user_without_rights_has_hosts_too(tmp_path: Path) -> None:
    """As nobody, where root runs the tests; else as whoever does."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": module_folders()}
    user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}

    def run(python: str, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-c", script],
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 2,
            **user,  # type: ignore[call-overload]  # one dictionary of several types
        )

    def starts(python: str) -> bool:
        try:
            return run(python, "import brisk_bench.fleet.links").returncode == 0
        except OSError:
            return False

    pythons = filter(None, (sys.executable, shutil.which("python3", path="/usr/bin")))
    python = next(filter(starts, pythons), None)
    if python is None:
        pytest.skip("no Python here that user 65534 can run with these modules")
    asked = run(python, "from brisk_bench.fleet.namespaces import *; usable_rights()")
    if "NoNamespacesError" in asked.stderr:
        pytest.skip(asked.stderr.strip().rpartition("\n")[2])
    done = run(python, AS_ANY_USER)
    assert done.returncode == 0, done.stderr
    shares = [float(each) for each in done.stdout.strip(" []\n").split(",")]
    assert len(shares) == 2
    assert all(0.3 < share < 1.0 for share in shares), shares


def pretend(folder: Path, name: str, script: str) -> None:
    """A program of this name."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def processes_marked(mark: str) -> list[str]:
    """Processes that were started with this ``NAME=value``: other racks may be there meanwhile."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in file.read_bytes().split(b"\0"):
                found.append(file.parent.name)
    return found


def module_folders() -> str:
    return ":".join(
        str(Path(module.__file__).resolve().parents[1])
        for module in (brisk, brisk_client, brisk_bench)
        if module.__file__
    )
