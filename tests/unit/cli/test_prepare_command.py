"""``brisk prepare`` writes what ``brisk explain`` then shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.errors import InvalidModelError
from unit.execution.starting_models import small_network


def test_a_prepared_model_is_explained_with_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    example = small_network(tmp_path / "entry")
    before = CliRunner().invoke(application, ["explain", str(tmp_path / "entry")])
    assert "there is no artefact for this machine" in before.stdout
    made = CliRunner().invoke(application, ["prepare", str(tmp_path / "entry")])
    assert made.exit_code == 0, made.output
    artefact = next((example.path.parent / ".brisk").glob("*.artefact"))
    assert f"wrote {artefact}" in made.stdout
    after = CliRunner().invoke(application, ["explain", str(tmp_path / "entry")])
    assert f"from {artefact}" in after.stdout
    assert "load-0" in after.stdout
    assert "from program to answer" in after.stdout


def test_preparing_what_is_no_model_names_it(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(b"no model")
    answer = CliRunner().invoke(application, ["prepare", str(tmp_path)])
    assert isinstance(answer.exception, InvalidModelError)
    assert "model.onnx" in str(answer.exception)
