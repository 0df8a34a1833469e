"""Checks of models, artefacts and the runtime; the command itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from brisk import __version__
from brisk.doctor import CHECKS, examine
from brisk.doctor.deployment import Deployment, Severity, find_deployment
from brisk.doctor.installation import (
    artefacts,
    interpreter,
    operators,
    runtime,
    runtime_directory,
)
from brisk.doctor.machine import open_files
from brisk.errors import InvalidConfigurationError
from brisk.protocol.channel import Receiver, send_record
from brisk.protocol.records import PROTOCOL_VERSION, Cancel, Record, Refused, Welcome
from brisk.protocol.runtime_paths import Role, new_socket, runtime_place
from brisk.segments.prepared.preparation import prepare
from support.deployments import deployment, write_model
from support.waiting import wait_until


def test_a_python_without_onnxruntime_is_a_problem(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'onnxruntime'\" >&2; exit 1"
    )
    python.chmod(0o755)
    chosen = deployment(tmp_path, environment={"BRISK_PYTHON": str(python)})
    (finding,) = interpreter(chosen)
    assert finding.verdict is Severity.PROBLEM
    assert "No module named 'onnxruntime'" in finding.found


@pytest.mark.parametrize("python", ["/bin/true", "/bin/false"])
def test_a_python_that_ends_without_a_word_is_a_problem(python: str, tmp_path: Path) -> None:
    (finding,) = interpreter(deployment(tmp_path, environment={"BRISK_PYTHON": python}))
    assert finding.verdict is Severity.PROBLEM
    assert finding.found.startswith(f"{python}: it ended without a word")


def test_models_that_onnx_runtime_does_not_take_are_named(tmp_path: Path) -> None:
    write_model(tmp_path, "Det")
    (finding,) = operators(deployment(tmp_path, repositories=(tmp_path,)))
    assert (finding.verdict, "all of 1 model" in finding.found) == (Severity.GOOD, True)
    write_model(tmp_path, "Nonesuch")
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    write_model(tmp_path, "Relu")
    config = 'parameters { key: "execution_mode" value: { string_value: "both" } }'
    (tmp_path / "relu" / "config.pbtxt").write_text(config)
    findings = operators(deployment(tmp_path, repositories=(tmp_path,)))
    assert [each.verdict for each in findings] == [Severity.PROBLEM] * 3
    for finding, name, reason in zip(
        findings,
        ("broken", "nonesuch", "relu"),
        ("not a complete ONNX model", "operator Nonesuch", "execution_mode"),
        strict=True,
    ):
        assert finding.found.startswith(f"{tmp_path}/{name}/1/model.onnx: ")
        assert reason in finding.found


def test_whether_a_library_is_loaded_is_the_server_s_setting(tmp_path: Path) -> None:
    write_model(tmp_path, "Relu")
    named = 'model_operations { op_library_filename: "absent.so" }'
    (tmp_path / "relu" / "config.pbtxt").write_text(named)
    for value, words in (("0", "BRISK_CUSTOM_OPS=0 of this server"), ("1", "there is no library")):
        server = {"HOME": str(tmp_path), "BRISK_CUSTOM_OPS": value}
        (finding,) = operators(deployment(tmp_path, repositories=(tmp_path,), environment=server))
        assert finding.verdict is Severity.PROBLEM
        assert words in finding.found
    assert list(artefacts(deployment(tmp_path, repositories=(tmp_path,)))) == []


def test_models_without_a_prepared_form_or_with_a_damaged_one_are_told(tmp_path: Path) -> None:
    """Looked for in the server's cache, not in this shell's."""
    repository, cache = tmp_path / "models", tmp_path / "server"
    write_model(repository, "Relu")
    write_model(repository, "Tanh")
    server = {"BRISK_CACHE_DIR": str(cache), "BRISK_THREADS": "2"}
    looked_at = deployment(tmp_path, repositories=(repository,), environment=server)
    (finding,) = artefacts(looked_at)
    assert finding.verdict is Severity.ADVICE
    assert "2 of 2 models have none here (relu, tanh)" in finding.found
    forms = [_prepared(repository / name, cache) for name in ("relu", "tanh")]
    (finding,) = artefacts(looked_at)
    assert (finding.verdict, "of 2 models each" in finding.found) == (Severity.GOOD, True)
    forms[0].chmod(0o600)
    forms[0].write_bytes(b"damaged")
    (finding,) = artefacts(looked_at)
    assert (finding.verdict, "not used: " in finding.found) == (Severity.ADVICE, True)
    assert str(forms[0]) in finding.found
    forms[0].unlink()
    model = repository / "tanh" / "1" / "model.onnx"
    model.write_bytes(model.read_bytes() + b"\x08\x08")
    (finding,) = artefacts(looked_at)
    assert "2 of 2 models have none here (relu, tanh)" in finding.found


def test_an_entry_whose_sessions_are_tuned_needs_no_prepared_form(tmp_path: Path) -> None:
    write_model(tmp_path, "Relu")
    config = "optimization { graph { level: -1 } }"
    (tmp_path / "relu" / "config.pbtxt").write_text(config)
    assert list(artefacts(deployment(tmp_path, repositories=(tmp_path,)))) == []


def _prepared(entry: Path, cache: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRISK_CACHE_DIR", str(cache))
        return prepare(entry / "1" / "model.onnx", 1).path


def test_no_runtime_is_no_fault(tmp_path: Path) -> None:
    environment = {"BRISK_RUNTIME_DIR": str(tmp_path / "none")}
    (finding,) = runtime(deployment(tmp_path, environment=environment))
    assert finding.verdict is Severity.UNKNOWN
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("answer", "verdict", "text"),
    [
        (Welcome(PROTOCOL_VERSION, __version__, 7), Severity.GOOD, "worker 7"),
        (Refused("protocol_error", "this runtime is Brisk 0.0"), Severity.PROBLEM, "is Brisk 0.0"),
        (Cancel(1), Severity.PROBLEM, "answers Cancel to a greeting"),
        (None, Severity.PROBLEM, "is silent"),
    ],
)
def test_a_runtime_of_another_version_is_a_problem(
    answer: Record | None, verdict: Severity, text: str
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

            other = threading.Thread(target=greet)
            other.start()
            (finding,) = runtime(deployment(Path(folder), environment=environment))
            other.join(timeout=30)
    assert (finding.verdict, text in finding.found) == (verdict, True), finding


def test_every_finding_that_is_not_good_says_what_it_costs_and_what_to_do(tmp_path: Path) -> None:
    (limit,) = open_files(deployment(tmp_path))
    assert limit.found.startswith("up to")
    bad = deployment(
        tmp_path,
        environment={"BRISK_THREADS": "999", "GOMP_SPINCOUNT": "1", "BRISK_PYTHON": "/absent"},
    )
    findings = list(examine(bad))
    assert {check for check, finding in findings if finding.verdict is Severity.PROBLEM} == {
        "threads",
        "runtime's Python",
    }
    for _, finding in findings:
        needs_words = finding.verdict in (Severity.ADVICE, Severity.PROBLEM)
        assert bool(finding.cost) == bool(finding.change) == needs_words, finding


def test_a_check_that_fails_itself_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(deployment: Deployment) -> Any:
        raise RuntimeError("no idea")

    monkeypatch.setitem(CHECKS, "spinning threads", fail)
    findings = dict(examine(deployment(tmp_path)))
    assert "no idea" in findings["spinning threads"].found
    assert "cache" in findings


def test_the_command_prints_json_and_fails_where_something_cannot_work(tmp_path: Path) -> None:
    environment = {**os.environ, "BRISK_THREADS": "999", "BRISK_RUNTIME_DIR": str(tmp_path)}
    doctor = subprocess.run(
        [sys.executable, "-m", "brisk.cli", "doctor", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    findings = {each["check"]: each for each in json.loads(doctor.stdout)}
    assert "none of this user runs" in findings["server"]["found"]
    assert findings["threads"]["verdict"] == "problem"
    assert doctor.returncode == 1
    assert set(findings) >= {"threads", "cache", "operators"}


@pytest.mark.parametrize("place", ["everybodys", "file/below", "long" * 30, "/proc/brisk"])
def test_a_runtime_directory_that_cannot_be_used_is_one_problem_in_the_words_of_the_runtime(
    place: str,
) -> None:
    with tempfile.TemporaryDirectory(prefix="brisk-") as name:  # a socket's path must be short
        folder = Path(name)
        (folder / "everybodys").mkdir()
        (folder / "everybodys").chmod(0o777)
        (folder / "file").touch()
        environment = {"HOME": name, "BRISK_RUNTIME_DIR": str(folder / place)}
        findings = list(examine(deployment(folder, environment=environment)))
        with pytest.raises(InvalidConfigurationError) as refusal:
            runtime_place("cpu", environment).prepare()
    problems = [each for each in findings if each[1].verdict is Severity.PROBLEM]
    assert [(check, finding.found) for check, finding in problems] == [
        ("runtime directory", str(refusal.value))
    ]
    assert not [finding for _, finding in findings if "itself failed" in finding.found]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process another root")
def test_the_runtime_directory_of_a_container_is_not_judged_by_this_machine_s(
    tmp_path: Path,
) -> None:
    environment = {"BRISK_RUNTIME_DIR": "/proc/brisk"}
    server = os.fork()
    if not server:
        os.chroot(tmp_path)
        signal.pause()
    try:
        contained = deployment(tmp_path, server=server, environment=environment)
        wait_until(lambda: contained.is_contained, "the other root directory")
        (finding,) = runtime_directory(contained)
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    assert finding.verdict is Severity.UNKNOWN
    assert not contained.is_contained
    assert not deployment(tmp_path).is_contained


def test_all_repositories_of_the_server_are_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path / "run"))
    folders = [tmp_path / name for name in ("first", "second", "third", "own")]
    for folder in folders:
        folder.mkdir()
    options = ["--model-repository", "first", f"--model-repository={folders[1]}"]
    options += [f"--model-store={folders[2]}", f"--model-repository={tmp_path / 'missing'}"]
    server = subprocess.Popen(
        ["tritonserver", "-c", "read end", "sh", *options],
        executable="/bin/sh",
        cwd=tmp_path,
        stdin=subprocess.PIPE,
    )
    try:
        wait_until(lambda: find_deployment([folders[3]], "cpu").server == server.pid, "the server")
        found = find_deployment([folders[3]], "cpu").repositories
        assert sorted(found) == sorted(folders)
        assert found[0] == folders[3]
    finally:
        server.communicate()
