"""The findings of ``brisk doctor`` about GPUs, with a stand-in for the driver."""

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
    """Make the machine one with a GPU; return the folder of its driver's files."""
    monkeypatch.setattr(checks, "DRIVERS_FILE", tmp_path)
    monkeypatch.setattr(checks, "Driver", functools.partial(Driver, fake_driver()))
    return tmp_path


def findings(folder: Path, answer: dict[str, Any], status: int = 0) -> list[Finding]:
    """Return the findings about a runtime's Python that has what ``answer`` says."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\necho no >&2\nexit {status}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return checks.gpus(deployment(folder, environment={"BRISK_PYTHON": str(python)}))


def test_a_machine_without_one_says_where_entries_run(tmp_path: Path) -> None:
    if checks.DRIVERS_FILE.exists():
        pytest.skip("there is a GPU here")
    (finding,) = checks.gpus(deployment(tmp_path))
    assert (finding.verdict.value, "run on the processor" in finding.found) == ("good", True)


def test_a_driver_that_cannot_be_used_is_a_problem(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "Driver", functools.partial(Driver, "libnowhere.so.1"))
    (finding,) = findings(folder, WHOLE)
    assert (finding.verdict.value, "libnowhere" in finding.found) == ("problem", True)
    assert "KIND_CPU" in finding.change


def test_where_all_is_there_the_default_is_the_gpu(folder: Path) -> None:
    (finding,) = findings(folder, WHOLE)
    assert finding.verdict.value == "good"
    assert finding.found.startswith("fake, driver for CUDA 13.0; onnxruntime 1.31.1 of ")
    assert finding.found.endswith(
        "for CUDA 13.0: entries without an instance_group run on the GPU"
    )


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
    (finding,) = findings(folder, {**WHOLE, **lacking})
    assert finding.verdict.value == "problem"
    assert text in finding.found
    assert change in finding.change
    assert "KIND_CPU" in finding.change


def test_it_asks_what_a_python_can_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build for processors is what is here."""
    findings_here = checks.gpus(deployment(folder, environment={"BRISK_PYTHON": sys.executable}))
    assert "is the build for processors" in findings_here[0].found


def test_a_python_that_fails_is_told_with_its_last_words(folder: Path) -> None:
    (finding,) = findings(folder, WHOLE, status=3)
    assert (finding.verdict.value, finding.found.endswith("python: no")) == ("problem", True)
