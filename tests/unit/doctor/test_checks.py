"""Checks of entries and of the machine, on good deployments and on others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brisk.doctor import machine
from brisk.doctor.deployment import Finding, Severity
from brisk.doctor.installation import auto_complete, cache, forked_stubs
from brisk.doctor.machine import (
    instance_threads,
    scheduling_classes,
    scheduling_group,
    scheduling_groups,
    shared_memory,
    spinning,
    threads,
)
from brisk.fork_server.build import LAUNCHER
from brisk.protocol.runtime_paths import Role, new_socket, runtime_place
from support.deployments import deployment

CORES = len(os.sched_getaffinity(0))


def test_auto_completion_is_advised_against_and_incomplete_entries_are_named(
    tmp_path: Path,
) -> None:
    whole = 'input { name: "x" } output { name: "y" }'
    for name, config in (("bare", "# M\xfcller's, without input and output"), ("whole", whole)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(config, "latin-1")
    server = {"server": os.getpid(), "repositories": (tmp_path,)}
    (finding,) = auto_complete(deployment(tmp_path, **server))
    assert finding.verdict is Severity.ADVICE
    assert "(bare)" in finding.change
    off = deployment(
        tmp_path, command=("tritonserver", "--disable-auto-complete-config"), **server
    )
    (finding,) = auto_complete(off)
    assert finding.verdict is Severity.GOOD
    (finding,) = auto_complete(deployment(tmp_path))
    assert finding.verdict is Severity.UNKNOWN


def test_without_a_launcher_stubs_start_anew_and_the_check_says_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(**environment: str) -> Finding:
        command = ("tritonserver", f"--backend-directory={tmp_path}")
        (finding,) = forked_stubs(
            deployment(tmp_path, server=os.getpid(), command=command, environment=environment)
        )
        return finding

    assert look().verdict is Severity.ADVICE
    monkeypatch.setenv("CXX", "/absent")
    assert look().change.startswith("install a C++ compiler")
    monkeypatch.setenv("CXX", sys.executable)
    assert look().change.startswith("`brisk install` or `brisk serve` again")
    (tmp_path / "file").touch()
    assert "see the finding 'cache'" in look(BRISK_CACHE_DIR=str(tmp_path / "file" / "c")).change
    (tmp_path / "brisk").mkdir()
    (tmp_path / "brisk" / LAUNCHER).touch()
    assert look().verdict is Severity.GOOD
    assert "remove BRISK_FORK_STUBS" in look(BRISK_FORK_STUBS="0").change
    (finding,) = forked_stubs(deployment(tmp_path))
    assert finding.verdict is Severity.UNKNOWN


def test_a_backend_directory_that_was_removed_under_the_server_is_a_problem(
    tmp_path: Path,
) -> None:
    """As with the cache directory, in which `brisk serve` puts it."""
    backends = tmp_path / "cache" / "backends"
    backends.mkdir(parents=True)
    command = ("tritonserver", f"--backend-directory={backends}")
    looked_at = deployment(tmp_path, server=os.getpid(), command=command)
    assert [each.verdict for each in machine.server(looked_at)] == [Severity.GOOD]
    backends.rmdir()
    _, finding = machine.server(looked_at)
    assert finding.verdict is Severity.PROBLEM
    assert finding.found == f"the server's backend directory '{backends}' is gone"
    assert finding.cost == "no model can be loaded"
    (finding,) = forked_stubs(looked_at)
    assert finding.verdict is Severity.UNKNOWN, "no advice that mends nothing"


def test_the_launcher_is_looked_for_where_brisk_is_installed(tmp_path: Path) -> None:
    """Under another name, and in a directory that the server is given relative to its own."""
    server = subprocess.Popen(["sleep", "600"], cwd=tmp_path)
    looked_at = deployment(
        tmp_path, server=server.pid, command=("tritonserver", "--backend-directory=backends")
    )
    placed = tmp_path / "backends" / "onnxruntime"
    (placed / "brisk").mkdir(parents=True)
    for name in ("model.py", "brisk/errors.py", LAUNCHER):
        (placed / name).touch()
    try:
        (finding,) = forked_stubs(looked_at)
        assert finding.verdict is Severity.GOOD
        (placed / LAUNCHER).unlink()
        (finding,) = forked_stubs(looked_at)
        assert finding.found.startswith(f"'backends/onnxruntime' has no {LAUNCHER}")
        assert "`brisk install --as onnxruntime`" in finding.change
    finally:
        server.kill()
        server.wait()


def test_little_shared_memory_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.statvfs(tmp_path)
    for free_mib, verdict in ((8, "problem"), (64, "advice"), (1024, "good")):
        blocks = free_mib * 2**20 // status.f_frsize
        changed = os.statvfs_result((*status[:2], 10**6, blocks, blocks, *status[5:]))
        monkeypatch.setattr(os, "statvfs", lambda path, changed=changed: changed)
        (finding,) = shared_memory(deployment(tmp_path))
        assert (finding.verdict, f"{free_mib} MiB of them free" in finding.found) == (
            verdict,
            True,
        )


def test_more_threads_than_cores_are_a_problem_and_a_quota_below_them_costs(
    tmp_path: Path,
) -> None:
    (finding,) = threads(deployment(tmp_path))
    assert finding.verdict is Severity.GOOD
    many = {"BRISK_THREADS": str(CORES + 1)}
    (finding,) = threads(deployment(tmp_path, environment=many))
    assert (finding.verdict, finding.change) == (
        Severity.PROBLEM,
        f"BRISK_THREADS={CORES} or less",
    )
    group = tmp_path / "pod" / "container"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("max 100000")
    (tmp_path / "pod" / "cpu.max").write_text("50000 100000")
    _, finding = threads(deployment(tmp_path, cgroup=group))
    assert finding.verdict is Severity.ADVICE
    assert "may use 0.5 cores" in finding.found
    (tmp_path / "pod" / "cpu.max").unlink()
    (group / "cpu.max").unlink()
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "pod" / "cpu.cfs_quota_us").write_text("25000\n")
    for directory in (group, tmp_path / "pod"):
        (directory / "cpu.cfs_period_us").write_text("100000\n")
    _, finding = threads(deployment(tmp_path, cgroup=group))
    assert "may use 0.25 cores" in finding.found


def test_many_threads_of_a_server_are_told_and_a_limit_that_is_nearly_reached_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*options: str) -> Finding:
        server = {"server": os.getpid(), "command": ("tritonserver", *options)}
        (finding,) = instance_threads(deployment(tmp_path, **server))
        return finding

    def limit(used: int, most: str) -> None:
        (group / "pids.current").write_text(f"{used}\n")
        (group / "pids.max").write_text(f"{most}\n")

    group = tmp_path / "pod" / "container"
    group.mkdir(parents=True)
    monkeypatch.setattr(machine, "control_group", lambda process, controller: group)
    monkeypatch.setattr(machine, "MANY_THREADS", 1)
    few = "--backend-config=python,thread-pool-size=4"
    assert instance_threads(deployment(tmp_path))[0].verdict is Severity.UNKNOWN
    told = look()
    assert (told.verdict, told.change[: len(few)]) == (Severity.ADVICE, few)
    assert look(few).verdict is Severity.GOOD
    limit(900, "max")
    assert look(few).verdict is Severity.GOOD
    limit(900, "1024")
    told = look(few)
    assert told.verdict is Severity.PROBLEM
    assert "900 of 1024" in told.found
    assert told.change == "a higher limit (pids)"
    assert look().change.startswith(few)
    limit(100, "1024")
    assert look(few).verdict is Severity.GOOD


@pytest.mark.parametrize("variable", [{"GOMP_SPINCOUNT": "1000"}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_spinning_is_advised_against(variable: dict[str, str], tmp_path: Path) -> None:
    (finding,) = spinning(deployment(tmp_path, environment=variable))
    assert finding.verdict is Severity.ADVICE
    (finding,) = spinning(deployment(tmp_path))
    assert finding.verdict is Severity.GOOD


def test_a_refused_scheduling_class_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = scheduling_classes(deployment(tmp_path))
    assert finding.verdict in (Severity.GOOD, Severity.ADVICE)

    def refuse(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    (finding,) = scheduling_classes(deployment(tmp_path))
    assert finding.verdict is Severity.ADVICE


def test_a_scheduling_group_is_a_control_group_with_a_weight_or_else_a_session(
    tmp_path: Path,
) -> None:
    switch = tmp_path / "sys" / "kernel" / "sched_autogroup_enabled"
    switch.parent.mkdir(parents=True)
    switch.write_text("1\n")
    for process, groups in {
        1: "0::/\n",
        2: "1:cpu:/\n",
        3: "4:cpu,cpuacct:/pod\n2:pids:/\n",
    }.items():
        (tmp_path / str(process)).mkdir()
        (tmp_path / str(process) / "cgroup").write_text(groups)
        (tmp_path / str(process) / "autogroup").write_text(f"/autogroup-{process} nice 0\n")
    names = [scheduling_group(process, tmp_path) for process in (1, 2, 3)]
    assert names == ["autogroup-1", "autogroup-2", "control group /pod"]
    (tmp_path / "2" / "autogroup").write_text("")  # of the session that the kernel started
    assert scheduling_group(2, tmp_path) == "the kernel's root group"
    switch.write_text("0\n")
    assert scheduling_group(2, tmp_path) == "the machine's only group"


def test_a_server_and_a_runtime_in_different_scheduling_groups_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = scheduling_groups(deployment(tmp_path))
    assert finding == Finding(Severity.UNKNOWN, "no server runs here")
    monkeypatch.setattr(machine, "_runtime", lambda deployment: 7)
    monkeypatch.setattr(machine, "scheduling_group", lambda process: f"group {process}")
    (finding,) = scheduling_groups(deployment(tmp_path, server=6))
    assert (finding.verdict, finding.found) == (
        Severity.ADVICE,
        "the server is in group 6, the runtime in group 7",
    )
    (finding,) = scheduling_groups(deployment(tmp_path, server=7))
    assert finding.verdict is Severity.GOOD


def test_the_runtime_is_looked_for_where_the_server_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path / "of this shell"))
    server = {
        "server": os.getpid(),
        "environment": {"BRISK_RUNTIME_DIR": str(tmp_path / "of the server")},
    }
    (finding,) = scheduling_groups(deployment(tmp_path, **server))
    assert finding == Finding(Severity.UNKNOWN, "no runtime runs here")
    place = runtime_place("cpu", server["environment"])
    place.prepare()
    with new_socket() as listener:
        listener.bind(str(place.socket_path(Role.FOREGROUND)))
        listener.listen()
        (finding,) = scheduling_groups(deployment(tmp_path, **server))
    assert finding.verdict is Severity.GOOD, "this process is both"


def test_a_cache_that_others_can_write_is_told(tmp_path: Path) -> None:
    directory = tmp_path / ".cache" / "brisk"
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    (finding,) = cache(deployment(tmp_path))
    assert finding.verdict is Severity.ADVICE
    assert f"{directory} has mode 0777" in finding.found


def test_a_cache_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = cache(deployment(tmp_path))
    assert str(tmp_path / ".cache" / "brisk") in finding.found
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    chosen = deployment(tmp_path, environment={"BRISK_CACHE_DIR": "/somewhere"})
    (finding,) = cache(chosen)
    assert finding.verdict is Severity.ADVICE
    assert finding.found == "/somewhere cannot be used (Permission denied)"
    assert "stubs start slower" in finding.cost


@pytest.mark.parametrize("place", ["/proc/brisk", "file/below"])
def test_a_cache_that_cannot_be_made_is_told(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    directory = str(tmp_path / place)  # an absolute one stays what it is
    (finding,) = cache(deployment(tmp_path, environment={"BRISK_CACHE_DIR": directory}))
    assert finding.verdict is Severity.ADVICE
    assert finding.found.startswith(f"{directory} cannot be used (")
