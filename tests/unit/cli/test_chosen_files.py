"""Commands on entries whose model lies elsewhere than at ``1/model.onnx``: as a load, they take
the file that the entry names, or the one in a folder of the usual name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest
from google.protobuf import text_format
from onnx import TensorProto
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.cli.views.checking import PROBLEM, check_repository
from brisk.cli.views.model_files import entries_in, model_file
from brisk.doctor import installation
from brisk.doctor.deployment import Severity
from brisk.errors import InvalidModelError
from brisk.view.entry_text import SCHEMA
from support.deployments import deployment
from support.models.identity_models import write_model

RIGHT = (TensorProto.FLOAT, ["batch", 5])
WRONG = (TensorProto.FLOAT, ["batch", 7])


def beside_the_usual(entry: Path) -> Path:
    """The file that the entry names, beside one of the usual name that it does not."""
    write_model(entry, {"right": RIGHT}, {"y": RIGHT})
    named = (entry / "1" / "model.onnx").rename(entry / "1" / "model_b.onnx")
    write_model(entry, {"wrong": WRONG}, {"y": WRONG})
    (entry / "config.pbtxt").write_text('backend: "brisk" default_model_filename: "model_b.onnx"')
    return named


def alone(entry: Path) -> Path:
    write_model(entry, {"right": RIGHT}, {"y": RIGHT})
    (entry / "config.pbtxt").write_text('backend: "brisk" default_model_filename: "net.onnx"')
    return (entry / "1" / "model.onnx").rename(entry / "1" / "net.onnx")


def in_onnx_runtime_s_own_format(entry: Path) -> Path:
    write_model(entry, {"right": RIGHT}, {"y": RIGHT})
    model, named = entry / "1" / "model.onnx", entry / "1" / "net.ort"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(named)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    model.unlink()
    (entry / "config.pbtxt").write_text('backend: "brisk" default_model_filename: "net.ort"')
    return named


def folder(entry: Path) -> Path:
    write_model(entry, {"right": RIGHT}, {"y": RIGHT})
    file = (entry / "1" / "model.onnx").rename(entry / "1" / "file")
    (entry / "1" / "model.onnx").mkdir()
    return file.rename(entry / "1" / "model.onnx" / "model.onnx")


layouts = pytest.mark.parametrize(
    "lay_out", [beside_the_usual, alone, in_onnx_runtime_s_own_format, folder]
)
Layout = Callable[[Path], Path]


def output_of(*arguments: object) -> str:
    result = CliRunner().invoke(application, [str(each) for each in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@layouts
def test_the_file_that_a_load_takes_is_the_one_of_all_commands(
    lay_out: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    repository = tmp_path / "models"
    entry = repository / "net"
    file = lay_out(entry)
    config = text_format.Parse(output_of("config", entry, "--stdout"), SCHEMA.ModelConfig())
    assert [(each.name, list(each.dims)) for each in config.input] == [("right", [5])]
    assert output_of("explain", entry).startswith(f"{file}: ")
    assert output_of("explain", repository).startswith(f"{file}: ")
    assert not [each for each in check_repository(entry) if each.severity == PROBLEM]
    (finding,) = installation.operators(deployment(tmp_path, repositories=(repository,)))
    assert (finding.verdict, "all of 1 model" in finding.found) == (Severity.GOOD, True), finding
    (finding,) = installation.artefacts(deployment(tmp_path, repositories=(repository,)))
    assert "1 of 1 model has none here (net)" in finding.found


def test_an_entry_that_names_an_absent_file_is_told_over_a_repository_too(tmp_path: Path) -> None:
    alone(tmp_path / "net").unlink()
    result = CliRunner().invoke(application, ["explain", str(tmp_path)])
    assert result.exit_code == 1
    assert f"there is no model file {tmp_path}/net/1/net.onnx" in result.stderr


def test_entries_of_other_backends_are_left_out_and_names_may_be_numbers(tmp_path: Path) -> None:
    alone(tmp_path / "7")
    for name, config in (("torch", 'default_model_filename: "net.pt"'), ("python", "")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "net.pt").touch()
        (tmp_path / name / "config.pbtxt").write_text(f'backend: "{name}" {config}')
    assert entries_in(tmp_path) == [tmp_path / "7"]


def test_a_version_that_cannot_be_served_is_no_matter_for_another(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        write_model(tmp_path, {"right": RIGHT}, {"y": RIGHT}, version)
    (tmp_path / "2" / "model.remote").touch()
    (tmp_path / "4").mkdir()
    assert model_file(tmp_path, 1) == tmp_path / "1" / "model.onnx"
    assert model_file(tmp_path) == tmp_path / "3" / "model.onnx"
    with pytest.raises(InvalidModelError, match=r"both .*2/model.onnx and .*2/model.remote"):
        model_file(tmp_path, 2)
    for absent in (4, 7):
        with pytest.raises(InvalidModelError, match=rf"no version {absent}, only \[1, 2, 3\]"):
            model_file(tmp_path, absent)
