"""Each check on deployments that are as they should be, and on one that is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from brisk import __version__
from brisk.artefacts import store
from brisk.doctor import (
    artefacts,
    auto_complete,
    cache,
    checks,
    descriptors,
    interpreter,
    operators,
    protocol,
    scheduling,
    scheduling_groups,
    shared_memory,
    spinning,
    threads,
)
from brisk.doctor.base import Deployment, Finding, Verdict
from brisk.doctor.deployment import find_deployment
from brisk.errors import ArtefactError
from brisk.execution import artefact as kept
from brisk.wire.channel import Receiver, new_socket, send_record
from brisk.wire.place import runtime_place
from brisk.wire.records import PROTOCOL_VERSION, Cancel, Record, Refused, Welcome
from brisk.wire.role import Role

CORES = len(os.sched_getaffinity(0))


def deployment(folder: Path, **changes: Any) -> Deployment:
    values: dict[str, Any] = {
        "server": None,
        "environment": {"HOME": str(folder)},
        "command": (),
        "repositories": (),
        "device": "cpu",
        "shared_memory": Path("/dev/shm"),
        "cgroup": folder,
    }
    return Deployment(**{**values, **changes})


def write_model(repository: Path, operator: str, domain: str = "") -> None:
    directory = repository / operator.lower() / "1"
    directory.mkdir(parents=True)
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy"]
    node = helper.make_node(operator, ["x"], ["y"], domain=domain)
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(
        helper.make_model(graph, opset_imports=opsets, ir_version=9), directory / "model.onnx"
    )


def test_auto_completion_is_advised_against_and_incomplete_entries_are_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.pbtxt").write_text('backend: "brisk"')
    server = {"server": os.getpid(), "repositories": (tmp_path,)}
    (found,) = auto_complete.look(deployment(tmp_path, **server))
    assert found.verdict is Verdict.ADVICE
    assert "(bare)" in found.change
    off = deployment(
        tmp_path, command=("tritonserver", "--disable-auto-complete-config"), **server
    )
    (found,) = auto_complete.look(off)
    assert found.verdict is Verdict.GOOD
    (found,) = auto_complete.look(deployment(tmp_path))
    assert found.verdict is Verdict.UNKNOWN


def test_little_shared_memory_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.statvfs(tmp_path)
    for free_mib, verdict in ((8, "problem"), (64, "advice"), (1024, "good")):
        blocks = free_mib * 2**20 // status.f_frsize
        changed = os.statvfs_result((*status[:2], 10**6, blocks, blocks, *status[5:]))
        monkeypatch.setattr(os, "statvfs", lambda path, changed=changed: changed)
        (found,) = shared_memory.look(deployment(tmp_path))
        assert (found.verdict, f"{free_mib} MiB of them free" in found.found) == (verdict, True)


def test_more_threads_than_cores_are_a_problem_and_a_quota_below_them_costs(
    tmp_path: Path,
) -> None:
    (found,) = threads.look(deployment(tmp_path))
    assert found.verdict is Verdict.GOOD
    many = {"BRISK_THREADS": str(CORES + 1)}
    (found,) = threads.look(deployment(tmp_path, environment=many))
    assert (found.verdict, found.change) == (Verdict.PROBLEM, f"BRISK_THREADS={CORES} or less")
    group = tmp_path / "pod" / "container"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("max 100000")
    (tmp_path / "pod" / "cpu.max").write_text("50000 100000")
    _, found = threads.look(deployment(tmp_path, cgroup=group))
    assert found.verdict is Verdict.ADVICE
    assert "may use 0.5 cores" in found.found
    (tmp_path / "pod" / "cpu.max").unlink()
    (group / "cpu.max").unlink()
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "pod" / "cpu.cfs_quota_us").write_text("25000\n")
    for directory in (group, tmp_path / "pod"):
        (directory / "cpu.cfs_period_us").write_text("100000\n")
    _, found = threads.look(deployment(tmp_path, cgroup=group))
    assert "may use 0.25 cores" in found.found


@pytest.mark.parametrize("variable", [{"GOMP_SPINCOUNT": "1000"}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_spinning_is_advised_against(variable: dict[str, str], tmp_path: Path) -> None:
    (found,) = spinning.look(deployment(tmp_path, environment=variable))
    assert found.verdict is Verdict.ADVICE
    (found,) = spinning.look(deployment(tmp_path))
    assert found.verdict is Verdict.GOOD


def test_a_refused_scheduling_class_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = scheduling.look(deployment(tmp_path))
    assert found.verdict in (Verdict.GOOD, Verdict.ADVICE)

    def refuse(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    (found,) = scheduling.look(deployment(tmp_path))
    assert found.verdict is Verdict.ADVICE


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
    found = [scheduling_groups.scheduling_group(process, tmp_path) for process in (1, 2, 3)]
    assert found == ["autogroup-1", "autogroup-2", "control group /pod"]
    switch.write_text("0\n")
    assert scheduling_groups.scheduling_group(2, tmp_path) == "the machine's only group"


def test_a_server_and_a_runtime_in_different_scheduling_groups_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = scheduling_groups.look(deployment(tmp_path))
    assert found == Finding("scheduling groups", Verdict.UNKNOWN, "no server runs here")
    monkeypatch.setattr(scheduling_groups, "_runtime", lambda device: 7)
    monkeypatch.setattr(scheduling_groups, "scheduling_group", lambda process: f"group {process}")
    (found,) = scheduling_groups.look(deployment(tmp_path, server=6))
    assert (found.verdict, found.found) == (
        Verdict.ADVICE,
        "the server is in group 6, the runtime in group 7",
    )
    (found,) = scheduling_groups.look(deployment(tmp_path, server=7))
    assert found.verdict is Verdict.GOOD


def test_a_cache_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = cache.look(deployment(tmp_path))
    assert str(tmp_path / ".cache" / "brisk") in found.found
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    chosen = deployment(tmp_path, environment={"BRISK_CACHE_DIR": "/somewhere"})
    (found,) = cache.look(chosen)
    assert (found.verdict, found.found) == (Verdict.ADVICE, "/somewhere cannot be written")


def test_a_python_without_torch_is_a_problem(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1"
    )
    python.chmod(0o755)
    chosen = deployment(tmp_path, environment={"BRISK_PYTHON": str(python)})
    (found,) = interpreter.look(chosen)
    assert found.verdict is Verdict.PROBLEM
    assert "No module named 'torch'" in found.found


def test_models_of_reference_operators_and_broken_ones_are_named(tmp_path: Path) -> None:
    write_model(tmp_path, "Relu")
    (found,) = operators.look(deployment(tmp_path, repositories=(tmp_path,)))
    assert (found.verdict, "1 models" in found.found) == (Verdict.GOOD, True)
    write_model(tmp_path, "Det")
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    found = {
        Path(each.found.partition(":")[0]).parent.parent.name: each.verdict
        for each in operators.look(deployment(tmp_path, repositories=(tmp_path,)))
    }
    assert found == {"broken": Verdict.PROBLEM, "det": Verdict.ADVICE}


def test_models_without_an_artefact_or_with_a_damaged_one_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "Relu")
    looked_at = deployment(tmp_path, repositories=(tmp_path,))
    (found,) = artefacts.look(looked_at)
    assert (found.verdict, "(relu)" in found.found) == (Verdict.ADVICE, True)

    def refuse(*arguments: object) -> None:
        raise ArtefactError("its digest is wrong")

    monkeypatch.setattr(kept, "find_artefact", lambda *arguments: tmp_path)
    monkeypatch.setattr(kept, "open_artefact", refuse)
    (found,) = artefacts.look(deployment(tmp_path, repositories=(tmp_path,)))
    assert (found.verdict, "digest is wrong" in found.found) == (Verdict.ADVICE, True)
    monkeypatch.setattr(kept, "open_artefact", lambda *arguments: None)
    (found,) = artefacts.look(deployment(tmp_path, repositories=(tmp_path,)))
    assert found.verdict is Verdict.GOOD


def test_artefacts_are_looked_for_in_the_servers_cache_not_in_this_shells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "shell"))
    write_model(tmp_path / "models", "Relu")
    (file,) = (tmp_path / "models").rglob("model.onnx")
    server = {"BRISK_CACHE_DIR": str(tmp_path / "server"), "BRISK_THREADS": "2"}
    fingerprint = kept.fingerprint_of(torch.device("cpu"), 2)
    _, place = store.candidate_directories(file, server)
    place.mkdir(parents=True)
    (place / store.artefact_name(file, fingerprint)).write_bytes(b"damaged")
    chosen = deployment(tmp_path, repositories=(tmp_path / "models",), environment=server)
    (found,) = artefacts.look(chosen)
    assert (found.verdict, "stale or damaged" in found.found) == (Verdict.ADVICE, True)
    assert str(place) in found.found


def test_no_runtime_is_no_fault(tmp_path: Path) -> None:
    environment = {"BRISK_RUNTIME_DIR": str(tmp_path / "none")}
    (found,) = protocol.look(deployment(tmp_path, environment=environment))
    assert found.verdict is Verdict.UNKNOWN
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("answer", "verdict", "text"),
    [
        (Welcome(PROTOCOL_VERSION, __version__, 7), Verdict.GOOD, "worker 7"),
        (Refused("protocol_error", "this runtime is Brisk 0.0"), Verdict.PROBLEM, "is Brisk 0.0"),
        (Cancel(1), Verdict.PROBLEM, "answers Cancel to a greeting"),
        (None, Verdict.PROBLEM, "is silent"),
    ],
)
def test_a_runtime_of_another_version_is_a_problem(
    answer: Record | None, verdict: Verdict, text: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="brisk-") as folder:  # a socket's path must be short
        environment = {"BRISK_RUNTIME_DIR": folder}
        place = runtime_place("cpu", environment)
        place.prepare()
        with new_socket() as listener:
            listener.bind(str(place.socket_path(Role.FOREGROUND)))
            listener.listen()

            def greet() -> None:
                connection, _ = listener.accept()
                with connection:
                    Receiver(connection).receive()
                    if answer is not None:
                        send_record(connection, answer)

            runtime = threading.Thread(target=greet)
            runtime.start()
            (found,) = protocol.look(deployment(Path(folder), environment=environment))
            runtime.join(timeout=30)
    assert (found.verdict, text in found.found) == (verdict, True), found


def test_every_finding_that_is_not_good_says_what_it_costs_and_what_to_do(tmp_path: Path) -> None:
    (limit,) = descriptors.look(deployment(tmp_path))
    assert limit.found.startswith("up to")
    bad = deployment(
        tmp_path,
        environment={"BRISK_THREADS": "999", "GOMP_SPINCOUNT": "1", "BRISK_PYTHON": "/absent"},
    )
    findings: list[Finding] = list(checks.examine(bad))
    assert {finding.check for finding in findings if finding.verdict is Verdict.PROBLEM} == {
        "threads",
        "runtime's Python",
    }
    for finding in findings:
        told = finding.verdict in (Verdict.ADVICE, Verdict.PROBLEM)
        assert bool(finding.cost) == bool(finding.change) == told, finding


def test_a_check_that_fails_itself_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(deployment: Deployment) -> Any:
        raise RuntimeError("no idea")

    monkeypatch.setattr(spinning, "look", fail)
    found = {each.check: each for each in checks.examine(deployment(tmp_path))}
    assert "no idea" in found["spinning threads"].found
    assert "cache" in found


def test_the_command_prints_json_and_fails_where_something_cannot_work(tmp_path: Path) -> None:
    environment = {**os.environ, "BRISK_THREADS": "999", "BRISK_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "brisk.cli", "doctor", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    findings = {each["check"]: each for each in json.loads(done.stdout)}
    if find_deployment((), "cpu").server is None:  # else another server's settings were looked at
        assert findings["threads"]["verdict"] == "problem"
        assert done.returncode == 1
    assert set(findings) >= {"threads", "cache", "operators"}
