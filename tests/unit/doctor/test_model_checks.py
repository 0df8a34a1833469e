"""Checks of models, artefacts and the runtime; the command itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from brisk import __version__
from brisk.artefacts import store
from brisk.doctor import (
    artefacts,
    checks,
    descriptors,
    interpreter,
    operators,
    protocol,
    spinning,
)
from brisk.doctor.base import Deployment, Finding, Verdict
from brisk.doctor.deployment import find_deployment
from brisk.errors import ArtefactError
from brisk.execution import artefact as kept
from brisk.wire.channel import Receiver, new_socket, send_record
from brisk.wire.place import runtime_place
from brisk.wire.records import PROTOCOL_VERSION, Cancel, Record, Refused, Welcome
from brisk.wire.role import Role
from unit.doctor.deployments import deployment, write_model


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
    place = store.artefact_directory(file, server)
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
