"""What a newcomer gets wrong is told in one line that names it, and ends with a status."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.cli.views.checking import INFORMATION, PROBLEM, check_repository
from brisk.doctor import machine
from brisk.doctor.deployment import find_deployment
from brisk.errors import BriskError
from support.models.identity_models import FLOAT_BATCH, write_model


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
        (("size", "empty"), "there is no model in it; expected a directory"),
        (("size", "model"), "is one model's directory; give the repository above it"),
        (("workload", "file"), "expected a workload in DISB's JSON"),
        (("workload", "nosuch"), "cannot be read: No such file or directory"),
        (("trace", "model", "--class", "realtme"), "did you mean 'realtime'?"),
        (("trace", "model", "--shape", "x=a"), "--shape x:shape=a: expected"),
        (("trace", "model", "--data", "file"), "--data "),
    ],
)
def test_it_is_named(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("nothing")
    write_model(tmp_path / "model", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    assert said in refused(*words)


@pytest.mark.parametrize("command", ["list", "clear"])
def test_a_cache_directory_that_is_a_file_is_told(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "file"))
    assert f"'{tmp_path / 'file'}' is no directory" in refused("cache", command)


def test_strings_are_traced_through_a_server_only(tmp_path: Path) -> None:
    kind = (TensorProto.STRING, ["n"])
    model = write_model(tmp_path / "model", {"s": kind}, {"t": kind})
    np.savez(tmp_path / "strings.npz", s=np.array(["a", "b"]))
    said = refused("trace", model, "--data", tmp_path / "strings.npz")
    assert "input 's' holds strings" in said
    assert "--url" in said


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


def test_doctor_names_settings_that_are_none_and_threads_that_are_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRISK_THREDS", "2")
    monkeypatch.setenv("BRISK_THREADS", "zwei")
    deployment = find_deployment((), "cpu")
    if deployment.server is not None:
        pytest.skip("a server runs here, whose environment it is")
    (told,) = machine.settings(deployment)
    assert "BRISK_THREDS, did you mean BRISK_THREADS?" in told.found
    assert "'zwei', no whole number" in machine.threads(deployment)[0].found
