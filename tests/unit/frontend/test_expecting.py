"""What a stub's command line and its entry's files tell of the load that will come."""

from __future__ import annotations

from pathlib import Path

import pytest

from brisk.frontend import expecting
from brisk.frontend.expecting import expected_model
from brisk.wire.records import Expect


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ordinary entry on a machine without GPU."""
    monkeypatch.setattr(expecting, "_NVIDIA", tmp_path / "none")
    version = tmp_path / "net" / "3"
    version.mkdir(parents=True)
    (version / "model.onnx").touch()
    (version.parent / "config.pbtxt").write_text('backend: "brisk"')
    return version.parent


def command_line(entry: Path, instance: str) -> list[str]:
    numbers = ["1048576", "1048576", "42"]
    model = str(entry / "3" / "model.py")
    return ["stub", model, "region", *numbers, "/backends/python", "336", instance, "DEFAULT", ""]


def test_an_ordinary_entry_s_load_is_expected(entry: Path) -> None:
    expected = Expect("net", 3, str(entry / "3" / "model.onnx"))
    assert expected_model(command_line(entry, "net_0_0")) == expected
    (entry / "config.pbtxt").unlink()
    assert expected_model(command_line(entry, "net_0_0")) == expected


@pytest.mark.parametrize(
    "setting",
    [
        'parameters [ { key: "brisk_load", value: { string_value: "lazy" } } ]',
        'parameters [ { key: "brisk_class", value: { string_value: "besteffort" } } ]',
        'default_model_filename: "other.onnx"',
        "instance_group [ { kind: KIND_GPU } ]",
    ],
)
def test_nothing_is_expected_where_it_may_be_another_file_or_another_worker(
    entry: Path, setting: str
) -> None:
    (entry / "config.pbtxt").write_text(f'backend: "brisk"\n{setting}\n')
    assert expected_model(command_line(entry, "net_0_0")) is None


def test_the_stub_that_completes_a_configuration_expects_nothing(entry: Path) -> None:
    assert expected_model(command_line(entry, "net")) is None


def test_neither_does_one_of_a_pipeline_or_of_no_model_at_all(entry: Path) -> None:
    (entry / "3" / "pipeline.json").touch()
    assert expected_model(command_line(entry, "net_0_0")) is None
    (entry / "3" / "pipeline.json").unlink()
    (entry / "3" / "model.onnx").unlink()
    assert expected_model(command_line(entry, "net_0_0")) is None


def test_what_may_be_triton_s_to_put_on_a_gpu_is_expected_only_where_that_is_said(
    entry: Path,
) -> None:
    expecting._NVIDIA.touch()
    assert expected_model(command_line(entry, "net_0_0")) is None
    (entry / "config.pbtxt").write_text("instance_group [ { kind: KIND_CPU } ]")
    assert expected_model(command_line(entry, "net_0_0")) is not None


def test_another_program_s_command_line_says_nothing() -> None:
    assert expected_model(["python", "-m", "pytest", ""]) is None


def test_without_a_runtime_nothing_happens(
    entry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path / "nowhere"))
    told = expected_model(command_line(entry, "net_0_0"))
    monkeypatch.setattr(expecting, "expected_model", lambda _: told)
    expecting.expect_own_model()
    assert not expecting._told
    expecting.withdraw()
