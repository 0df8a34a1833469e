"""What ``brisk doctor`` says of GPUs, with a stand-in for the driver."""

from __future__ import annotations

import functools
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from brisk.doctor import gpus as checks
from brisk.doctor.deployment import Finding
from brisk.gpu.driver import Driver
from support.deployments import deployment
from support.runtime.fake_driver import fake_driver

WHOLE = {
    "torch": "2.11.0+cu130",
    "torch_cuda": "13.0",
    "seen": 1,
    "onnxruntime": "1.31.1",
    "provider": True,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """On a machine with a GPU."""
    monkeypatch.setattr(checks, "DRIVERS_FILE", tmp_path)
    monkeypatch.setattr(checks, "Driver", functools.partial(Driver, fake_driver()))
    return tmp_path


def findings(folder: Path, answer: dict[str, Any], status: int = 0) -> list[Finding]:
    """Of a runtime's Python that has what ``answer`` says."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\necho no >&2\nexit {status}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return checks.gpus(deployment(folder, environment={"BRISK_PYTHON": str(python)}))


def test_a_machine_without_one_says_where_entries_run(tmp_path: Path) -> None:
    if checks.DRIVERS_FILE.exists():
        pytest.skip("there is a GPU here")
    (found,) = checks.gpus(deployment(tmp_path))
    assert (found.verdict.value, "run on the processor" in found.found) == ("good", True)


def test_a_driver_that_cannot_be_used_is_a_problem(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "Driver", functools.partial(Driver, "libnowhere.so.1"))
    (found,) = findings(folder, WHOLE)
    assert (found.verdict.value, "libnowhere" in found.found) == ("problem", True)
    assert "KIND_CPU" in found.change


def test_where_all_is_there_the_default_is_the_gpu(folder: Path) -> None:
    first, second = findings(folder, WHOLE)
    assert first.verdict.value == second.verdict.value == "good"
    assert first.found.startswith("fake, driver for CUDA 13.0; torch 2.11.0+cu130 (CUDA 13.0)")
    assert "entries without an instance_group run on the GPU" in first.found


@pytest.mark.parametrize(
    ("lacking", "verdict", "text", "change"),
    [
        ({"torch": None}, "problem", "has no torch", "pip install 'brisk-triton[gpu]'"),
        ({"seen": 0}, "problem", "sees none of them", "no newer than the driver's"),
        ({"torch_cuda": None, "seen": 0}, "problem", "for processors", "KIND_CPU"),
        ({"provider": False}, "advice", "build for processors", "onnxruntime-gpu"),
    ],
)
def test_what_is_missing_is_named_with_what_to_do(
    folder: Path, lacking: dict[str, Any], verdict: str, text: str, change: str
) -> None:
    answer = {**WHOLE, **lacking}
    if answer["torch"] is None:
        del answer["torch"]
    found = [each for each in findings(folder, answer) if each.verdict.value != "good"]
    assert len(found) == 1
    assert found[0].verdict.value == verdict
    assert text in found[0].found
    assert change in found[0].change


def test_a_python_that_fails_is_told_with_its_last_words(folder: Path) -> None:
    (found,) = findings(folder, WHOLE, status=3)
    assert (found.verdict.value, found.found.endswith("python: no")) == ("problem", True)
