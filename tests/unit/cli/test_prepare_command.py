"""``brisk prepare`` writes what a start of the model maps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.segments.prepared.form import find_prepared
from brisk.segments.prepared.preparation import is_prepared
from support.models.segment_models import chain


def test_every_version_of_a_model_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    for version in ("1", "2"):
        (tmp_path / "entry" / version).mkdir(parents=True)
        chain(tmp_path / "entry" / version / "model.onnx", layers=int(version), width=64)
    made = CliRunner().invoke(application, ["prepare", str(tmp_path / "entry"), "--threads", "1"])
    assert made.exit_code == 0, made.output
    for version in ("1", "2"):
        model = tmp_path / "entry" / version / "model.onnx"
        file = find_prepared(model)
        assert file is not None
        assert f"wrote {file}" in made.stdout
        assert is_prepared(model, 1)


@pytest.mark.parametrize("name", ["entry", "entry/1/model.remote"])
def test_a_model_that_lies_elsewhere_is_prepared_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "entry" / "1").mkdir(parents=True)
    remote = tmp_path / "entry" / "1" / "model.remote"
    named = {"url": "https://models.example/manifest.json", "sha256": "a" * 64}
    remote.write_text(json.dumps(named))
    answer = CliRunner().invoke(application, ["prepare", str(tmp_path / name)])
    assert isinstance(answer.exception, InvalidConfigurationError)
    assert f"'{remote}' is no ONNX file" in str(answer.exception)
    assert "brisk publish" in str(answer.exception)


def test_publishing_says_what_the_entry_needs_beside_what_it_writes(tmp_path: Path) -> None:
    model = chain(tmp_path / "model.onnx", layers=1, width=64)
    remote = tmp_path / "entry" / "1" / "model.remote"
    words = ["publish", str(model), str(tmp_path / "there"), "--no-form", "--entry", str(remote)]
    answer = CliRunner().invoke(application, words)
    assert answer.exit_code == 0, (answer.output, answer.exception)
    config = tmp_path / "entry" / "config.pbtxt"
    needs = f'where `brisk serve` makes no view, {config} must have backend: "brisk"'
    assert answer.stdout.splitlines() == [f"wrote {remote}", needs]
    config.write_text('backend: "brisk"')
    answer = CliRunner().invoke(application, words)
    assert answer.stdout.splitlines() == [f"wrote {remote}"]


def test_a_form_larger_than_allowed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("brisk.segments.prepared.preparation.SPARE_BYTES", 0)
    model = chain(tmp_path / "model.onnx", layers=1)
    answer = CliRunner().invoke(application, ["prepare", str(model), "--disk", "0"])
    assert isinstance(answer.exception, InvalidModelError)
    assert "takes more than" in str(answer.exception)


def test_one_bad_model_of_a_repository_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    repository = tmp_path / "models"
    for name in ("bad", "fine"):
        (repository / name / "1").mkdir(parents=True)
    (repository / "bad" / "1" / "model.onnx").write_bytes(b"no model")
    chain(repository / "fine" / "1" / "model.onnx", layers=1, width=64)
    result = CliRunner().invoke(application, ["prepare", str(repository)])
    assert result.exit_code == 1
    assert "bad/1/model.onnx: not a complete ONNX model" in result.stderr
    assert "fine/1/model.onnx" in result.stdout


def test_a_command_about_one_model_names_those_of_a_repository(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    chain(tmp_path / "m" / "1" / "model.onnx", layers=1, width=64)
    result = CliRunner().invoke(application, ["config", str(tmp_path)])
    assert isinstance(result.exception, InvalidModelError)
    assert f"is a repository; name one of its models, like '{tmp_path / 'm'}'" in str(
        result.exception
    )
