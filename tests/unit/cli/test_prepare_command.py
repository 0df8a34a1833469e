"""``brisk prepare`` writes what ``brisk explain`` then shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from brisk.artefacts.store import artefact_directory
from brisk.cli.application import application
from brisk.errors import InvalidModelError
from unit.execution.starting_models import small_network, stage_costs


def test_a_prepared_model_is_explained_with_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BRISK_ENGINE", "brisk")
    example = small_network(tmp_path / "entry")
    before = CliRunner().invoke(application, ["explain", str(tmp_path / "entry")])
    assert "there is no artefact for this machine" in before.stdout
    made = CliRunner().invoke(application, ["prepare", str(tmp_path / "entry")])
    assert made.exit_code == 0, made.output
    artefact = next(artefact_directory(example.path).glob("*.artefact"))
    assert f"wrote {artefact}" in made.stdout
    after = CliRunner().invoke(application, ["explain", str(tmp_path / "entry")])
    assert f"from {artefact}" in after.stdout
    assert "load-0" in after.stdout
    assert "from program to answer" in after.stdout


@pytest.mark.parametrize(("substitute_ns", "word"), [(2, "is substituted"), (1e9, "waits")])
def test_a_model_without_artefact_is_explained_with_what_reuse_would_do(
    substitute_ns: float, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BRISK_ENGINE", "brisk")
    small_network(tmp_path / "entry")
    told = CliRunner().invoke(application, ["explain", str(tmp_path / "entry")]).stdout
    assert "no substitutes: `brisk prepare` has measured none" in told
    stage_costs(load_ns_per_byte=1e6, substitute_ns=substitute_ns)
    told = CliRunner().invoke(application, ["explain", str(tmp_path / "entry")]).stdout
    assert re.search(rf"load +[\d.]+ run +[\d.]+; general_convolution +[\d.]+: {word}", told)


def test_preparing_what_is_no_model_names_it(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(b"no model")
    answer = CliRunner().invoke(application, ["prepare", str(tmp_path)])
    assert isinstance(answer.exception, InvalidModelError)
    assert "model.onnx" in str(answer.exception)
