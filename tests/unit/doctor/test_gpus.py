"""What ``brisk doctor`` says of GPUs, with a stand-in for the driver."""

from __future__ import annotations

import functools
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from brisk.doctor import gpus as checks
from brisk.doctor.deployment import Finding
from brisk.gpu.driver import Driver
from support.deployments import deployment
from support.runtime.fake_driver import fake_driver

WHOLE = {"onnxruntime": "1.31.1", "cuda": "13.0", "provider": True}


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
    (found,) = findings(folder, WHOLE)
    assert found.verdict.value == "good"
    assert found.found.startswith("fake, driver for CUDA 13.0; onnxruntime 1.31.1 of ")
    assert found.found.endswith("for CUDA 13.0: entries without an instance_group run on the GPU")


@pytest.mark.parametrize(
    ("lacking", "text", "change"),
    [
        ({"provider": False}, "build for processors", "pip install onnxruntime-gpu"),
        ({"cuda": "14.1"}, "for CUDA 14.1", "a driver for it"),
        ({"lacking": "libcudnn.so.9: cannot open"}, "libcudnn.so.9", "[cuda,cudnn]"),
    ],
)
def test_what_is_missing_is_named_with_what_to_do(
    folder: Path, lacking: dict[str, Any], text: str, change: str
) -> None:
    (found,) = findings(folder, {**WHOLE, **lacking})
    assert found.verdict.value == "problem"
    assert text in found.found
    assert change in found.change
    assert "KIND_CPU" in found.change


def test_it_asks_what_a_python_can_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build for processors is what is here."""
    found = checks.gpus(deployment(folder, environment={"BRISK_PYTHON": sys.executable}))
    assert "is the build for processors" in found[0].found


def test_a_python_that_fails_is_told_with_its_last_words(folder: Path) -> None:
    (found,) = findings(folder, WHOLE, status=3)
    assert (found.verdict.value, found.found.endswith("python: no")) == ("problem", True)
