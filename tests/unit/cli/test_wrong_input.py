"""What a newcomer gets wrong is told in one line that names it, and ends with a status."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import TensorProto
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.cli.commands.serve import serve
from brisk.cli.views.checking import INFORMATION, PROBLEM, WARNING, check_repository
from brisk.doctor import installation, machine
from brisk.doctor.deployment import Severity, find_deployment
from brisk.errors import BriskError
from support.deployments import deployment
from support.models.identity_models import FLOAT_BATCH, write_model
from support.unprivileged import UNPRIVILEGED, of_mode


def refused(*arguments: object) -> str:
    """The one line of the error that the command ends with."""
    result = CliRunner().invoke(application, [str(each) for each in arguments])
    assert isinstance(result.exception, BriskError), (result.output, result.exception)
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("prepare", "nosuch"), "there is no model at"),
        (("caches", "show", "nosuch"), "there is no model at"),
        (("caches", "export", "nosuch", "out"), "there is no model at"),
        (("doctor", "--repository", "nosuch"), "is no directory"),
        (("size", "file"), "is no directory; expected a model repository"),
        (("check", "file"), "is no directory; expected a model repository, or one of its entries"),
        (("config", "file"), "is no directory; expected a model's, which holds 1/model.onnx"),
        (("explain", "model/1"), "is one version of a model; expected the directory above it"),
        (("explain", "model/1/model.onnx", "--version", "7"), "a file, which has no version 7"),
        (("publish", "nosuch", "ftp://h/m"), "'ftp://h/m': expected a folder"),
        (("publish", "model", "out", "--found-at", "ftp://h/m"), "'ftp://h/m': expected a folder"),
        (("prepare", "flat"), "'flat/net.onnx' can be named itself"),
        (("serve", "--model-repository", "nosuch"), "is no directory"),
        (("size", "empty"), "there is no model in it; expected a directory"),
        (("size", "model"), "is one model's directory; give the repository above it"),
        (("size", ".", "--shape", "x=1,a"), "--shape x=1,a: expected NAME=1,3,224,224"),
        (("size", ".", "--shape", "x=1,0"), "--shape x=1,0: expected NAME=1,3,224,224"),
        (("size", ".", "--shape", "x=" + "9" * 5000), "expected NAME=1,3,224,224"),
        (("size", ".", "--data", "in.npz"), "--data in.npz: expected ENTRY=FILE.npz"),
        (("size", ".", "--data", "net=in.npz"), "the repository has no entry 'net'; it has: "),
        (("size", ".", "--data", "model=in.npz"), "--data model=in.npz: in.npz"),
        (("workload", "file"), "expected a workload in DISB's JSON"),
        (("workload", "nosuch"), "cannot be read: No such file or directory"),
        (("trace", "model", "--class", "realtme"), "did you mean 'realtime'?"),
        (("trace", "model", "--shape", "x=a"), "--shape x=a: expected NAME=1,3,224,224"),
        (("trace", "model", "--data", "file"), "--data must be a .npz with an array for"),
        (("trace", "model", "--data", "no.npz"), "--data: no.npz holds no arrays by name"),
        (("trace", "nosuch"), "at 'nosuch'; for a model of a running server give --url HOST:PORT"),
        (("trace", "open"), "'x' declares no shape; give one: --shape x=1,2,3"),
    ],
)
def test_it_is_named(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("nothing")
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "net.onnx").touch()
    write_model(tmp_path / "model", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    write_model(tmp_path / "open", {"x": (TensorProto.FLOAT, None)}, {"y": FLOAT_BATCH})
    assert said in refused(*words)


@pytest.mark.parametrize("command", ["list", "clear"])
def test_a_cache_directory_that_is_a_file_is_told(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "file"))
    assert f"'{tmp_path / 'file'}' is no directory" in refused("cache", command)


def test_values_without_sizes_are_checked_as_they_are_served(tmp_path: Path) -> None:
    kind = (TensorProto.STRING, ["n"])
    write_model(tmp_path / "strings", {"s": kind}, {"t": kind})
    assert list(check_repository(tmp_path)) == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('name: "other"', "has name 'other'"),
        ("version_policy { specific { versions: [3] } }", r"loads versions [3]; there are [1]"),
        ('backend: "briks"', "did you mean 'brisk'?"),
        ('platform: "onnxruntime_onxx"', "did you mean 'onnxruntime_onnx'?"),
        (
            'backend: "brisk"\nbrisk_tolerance: "cosine 0.99"',
            '; it is a parameter: parameters { key: "brisk_tolerance" value { string_value: '
            '"cosine 0.99" } }',
        ),
        ("brisk_max_queue_size : 5", 'key: "brisk_max_queue_size" value { string_value: "5" }'),
    ],
)
def test_what_triton_refuses_before_a_stub_hears_of_it_is_found(
    config: str, said: str, tmp_path: Path
) -> None:
    entry = write_model(tmp_path / "entry", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    (entry / "config.pbtxt").write_text(config)
    found = [each for each in check_repository(tmp_path) if each.severity == PROBLEM]
    assert [said in each.text for each in found] == [True], found


def test_an_entry_without_files_and_a_model_in_place_of_a_repository_are_found(
    tmp_path: Path,
) -> None:
    (tmp_path / "repository" / "empty" / "1").mkdir(parents=True)
    (found,) = check_repository(tmp_path / "repository")
    assert (found.severity, "its versions are empty" in found.text) == (PROBLEM, True)
    model = write_model(tmp_path / "model", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    (found,) = check_repository(model)
    assert found.severity == INFORMATION
    assert "a server is given the folder above it" in found.text


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("entry/model.onnx", "it has no version: 'model.onnx' lies in the entry itself; expected"),
        ("entry/v1/model.onnx", "it has no version: 'v1' is no version's number; expected"),
        ("entry/01/model.onnx", "it has no version: '01' is no version's number; expected"),
        ("entry/config.pbtxt", "it has no version; expected a file like 1/model.onnx"),
        ("entry/1/net.onnx", "it has no config.pbtxt, and 'net.onnx' does not say"),
    ],
)
def test_an_entry_that_triton_loads_nothing_of_is_told_by_all_in_the_same_words(
    file: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "models"
    (repository / file).parent.mkdir(parents=True)
    (repository / file).touch()
    (found,) = check_repository(repository)
    assert found.severity == PROBLEM
    assert found.text.startswith(said)
    words = ["--repository", str(repository), "--tritonserver", str(tmp_path / "absent")]
    line = f"'{repository / found.entry}' is not served: {found.text}"
    with pytest.raises(BriskError, match=f"^{re.escape(line)}$"):
        serve(words)
    assert capfd.readouterr().err == ""
    write_model(tmp_path / "good" / "entry", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    with pytest.raises(BriskError, match="absent"):
        serve([*words, "--repository", str(tmp_path / "good")])
    assert capfd.readouterr().err == f"brisk: {line}\n"
    (finding,) = installation.entries(deployment(tmp_path, repositories=(repository,)))
    assert finding.verdict is Severity.PROBLEM
    assert finding.found == f"'{repository / found.entry}': {found.text}"


def command(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a user for whom the modes of files count."""
    run = [*UNPRIVILEGED, sys.executable, "-m", "brisk.cli", *map(str, words)]
    return subprocess.run(run, capture_output=True, text=True)


@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_a_folder_that_cannot_be_read_keeps_no_other_from_being_served(
    mode: int, tmp_path: Path
) -> None:
    """As a volume's lost+found, which is root's."""
    repository = tmp_path / "models"
    write_model(repository / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    (repository / "lost+found" / "1").mkdir(parents=True)
    (repository / "lost+found").chmod(mode)
    done = command("serve", "--repository", repository, "--tritonserver", tmp_path / "absent")
    told, error = done.stderr.splitlines()
    assert told.startswith(
        f"brisk: '{repository / 'lost+found'}' is not served: it cannot be read"
    )
    assert "absent" in error  # the server that it would have become


@pytest.mark.parametrize("config", [None, 'backend: "brisk"'])
def test_a_version_that_cannot_be_read_keeps_no_other_entry_from_being_served(
    config: str | None, tmp_path: Path
) -> None:
    repository = tmp_path / "models"
    write_model(repository / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    bad = write_model(repository / "bad", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    if config is not None:
        (bad / "config.pbtxt").write_text(config)
    said = "'bad/1' cannot be read; expected a directory that the server's user may read"
    with of_mode(bad / "1", 0):
        done = command("serve", "--repository", repository, "--tritonserver", tmp_path / "absent")
        told, error = done.stderr.splitlines()
        assert told == f"brisk: '{bad}' is not served: {said}"
        assert "absent" in error
        assert said in " ".join(command("check", repository).stdout.split())
        done = command("doctor", "--repository", repository)
        assert f"'{bad}': {said}" in " ".join(done.stdout.split())


@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_a_repository_that_cannot_be_read_ends_serve(mode: int, tmp_path: Path) -> None:
    """Triton would serve it as an empty one, and be ready."""
    entry = write_model(tmp_path / "models" / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    with of_mode(entry.parent, mode):
        options = ("--model-control-mode=explicit", "--tritonserver", tmp_path / "absent")
        done = command("serve", "--repository", entry.parent, *options)
    (error,) = done.stderr.splitlines()
    assert error == f"error: model repository '{entry.parent}' cannot be read: Permission denied"
    assert done.returncode == 1


def test_a_folder_that_cannot_be_written_is_named_by_config(tmp_path: Path) -> None:
    entry = write_model(tmp_path / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    with of_mode(entry, 0o555):
        done = command("config", entry)
    (error,) = done.stderr.splitlines()
    assert error.startswith(f"error: '{entry}' cannot be written: Permission denied; expected a")


def test_a_name_that_a_url_has_to_encode_is_told(tmp_path: Path) -> None:
    write_model(tmp_path / "modèle", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    (found,) = check_repository(tmp_path)
    assert found.severity == WARNING
    assert "other characters than ASCII letters, digits" in found.text
    assert found.text.endswith("by HTTP no name is found that a URL has to encode")


def test_a_repository_that_is_given_twice_is_told(tmp_path: Path) -> None:
    write_model(tmp_path / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    words = ["--repository", str(tmp_path), "--model-repository", f"{tmp_path}/"]
    with pytest.raises(BriskError, match=f"^model repository '{tmp_path}' is given twice$"):
        serve([*words, "--tritonserver", str(tmp_path / "absent")])


def test_a_model_served_in_place_of_its_repository_is_told(
    tmp_path: Path,
) -> None:
    model = write_model(tmp_path / "model", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    with pytest.raises(BriskError, match=r"looks like one model: give the folder above it$"):
        serve(["--repository", str(model), "--tritonserver", str(tmp_path / "absent")])


def test_all_that_is_wrong_is_told_where_no_entry_of_any_repository_can_be_served(
    tmp_path: Path,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "models" / "net" / "v1").mkdir(parents=True)
    words = ["--repository", str(tmp_path / "empty"), "--repository", str(tmp_path / "models")]
    with pytest.raises(BriskError) as refusal:
        serve([*words, "--tritonserver", str(tmp_path / "absent")])
    of_empty, of_net = str(refusal.value).splitlines()
    assert "there is no model in it" in of_empty
    assert of_net.startswith(f"'{tmp_path / 'models' / 'net'}' is not served: it has no version")


def test_an_empty_repository_beside_one_with_a_model_keeps_it_from_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    write_model(tmp_path / "models" / "entry", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    words = ["--repository", str(tmp_path / "empty"), "--repository", str(tmp_path / "models")]
    with pytest.raises(BriskError, match="absent"):
        serve([*words, "--tritonserver", str(tmp_path / "absent")])
    assert "there is no model in it" in capfd.readouterr().err
    both = (tmp_path / "empty", tmp_path / "models")
    (finding,) = installation.entries(deployment(tmp_path, repositories=both))
    assert "there is no model in it" in finding.found


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[: len(data) // 2], r"it ends \d+ bytes too early"),
        (lambda data: data[:-1], "it ends 1 byte too early"),
        (lambda data: b"<html>not found</html>", "it is no protocol buffer"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS"),
        (lambda data: b"\x08\x08\x3a\x03\xff\xff\xff", "what it holds is damaged"),
        (lambda data: b"\x08\x08", "it has no graph or no operator set"),
    ],
)
def test_a_damaged_model_is_told_by_all_in_the_same_words(
    damage: Callable[[bytes], bytes], said: str, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    file = model / "1" / "model.onnx"
    file.write_bytes(damage(file.read_bytes()))
    (found,) = (each for each in check_repository(tmp_path) if each.severity == PROBLEM)
    assert re.fullmatch(f"{file}: not a complete ONNX model: .*{said}.*", found.text)
    for command in ("explain", "prepare", "config"):
        assert refused(command, model) == found.text


def test_a_runtime_directory_that_cannot_be_used_ends_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path / "file" / "r"))
    write_model(tmp_path / "models" / "entry", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    with pytest.raises(BriskError, match="set BRISK_RUNTIME_DIR to"):
        serve(["--repository", str(tmp_path / "models"), "--tritonserver", "/absent"])


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/absent/python3", "cannot be run: No such file or directory"),
        ("/etc/passwd", "cannot be run: Permission denied"),
        ("/bin/true", r"does not run as a Python (status 0)"),
        ("/bin/false", r"does not run as a Python (status 1)"),
        ("{bare}", "has no numpy, onnx, onnxruntime"),
        ("{other}", None),
    ],
)
def test_a_python_that_a_runtime_cannot_run_under_ends_serve(
    python: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another server's runtime goes on, which needs none."""
    bare, other = tmp_path / "bare" / "bin" / "python", tmp_path / "other"
    if python == "{bare}":
        venv.create(tmp_path / "bare")
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    named = python.format(bare=bare, other=other)
    monkeypatch.setenv("BRISK_PYTHON", named)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    write_model(tmp_path / "models" / "entry", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    words = ["--repository", str(tmp_path / "models"), "--tritonserver", "/absent"]
    expected = "; expected a Python that has numpy, onnx, onnxruntime"
    said = "no executable tritonserver" if said is None else f"BRISK_PYTHON '{named}' {said}"
    with pytest.raises(BriskError) as refusal:
        serve(words)
    assert str(refusal.value).startswith(said)
    assert python == "{other}" or str(refusal.value).endswith(expected)


def test_serve_names_settings_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A runtime that another server has started does not hear of them."""
    monkeypatch.setenv("BRISK_THREADZ", "2")
    write_model(tmp_path / "models" / "entry", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    with pytest.raises(BriskError, match="no executable tritonserver"):
        serve(["--repository", str(tmp_path / "models"), "--tritonserver", "/absent"])
    line = "brisk: there is no setting BRISK_THREADZ, did you mean BRISK_THREADS?\n"
    assert capfd.readouterr().err == line


def test_doctor_names_settings_that_are_none_and_threads_that_are_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path))  # of which no server is
    monkeypatch.setenv("BRISK_THREDS", "2")
    monkeypatch.setenv("BRISK_THREADS", "zwei")
    found = find_deployment((), "cpu")
    invalid, unknown = machine.settings(found)
    assert re.match("BRISK_THREADS must be a whole number .*, not 'zwei'", invalid.found)
    assert "BRISK_THREDS, did you mean BRISK_THREADS?" in unknown.found
    assert machine.threads(found)[0].verdict is Severity.GOOD, "one thread for each core"


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (["trace", "net", "--url", "127.0.0.1:1"], "grpc"),
        (["trace", "net", "--url", "127.0.0.1:1"], "gevent"),
        (["size", "models"], "grpc"),
        (["workload", "load.json"], "grpc"),
        (["demo", "--once"], "grpc"),
    ],
)
def test_a_command_that_asks_servers_says_which_package_it_lacks(
    words: list[str], package: str, tmp_path: Path
) -> None:
    """As in the images, which have tritonclient without what its clients need."""
    write_model(tmp_path / "models" / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    task = '{"id": "a", "load": {"type": "continuous"}, "client": {"model_name": "net"}}'
    (tmp_path / "load.json").write_text(f'{{"time": 1, "tasks": [{task}]}}')
    program = f"import sys; sys.modules[{package!r}] = None; from brisk.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: this needs the package '{package}'")
    assert line.endswith("pip install 'tritonclient[http,grpc]'")
