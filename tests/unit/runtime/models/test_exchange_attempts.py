"""A model whose exchange ends workers stays as it started, and is tried anew once changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brisk.runtime.sessions.identity import MOST_DEATHS, exchange_attempt

DYING = (
    "import os, sys; from pathlib import Path; "
    "from brisk.runtime.sessions.identity import exchange_attempt\n"
    "with exchange_attempt(Path(sys.argv[1])) as may_be_tried:\n"
    "    os._exit(7 if may_be_tried else 0)"
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "model.onnx"
    path.write_bytes(b"model")
    return path


def dies(model: Path) -> int:
    return subprocess.run([sys.executable, "-c", DYING, str(model)], check=False).returncode


def may_be_tried(model: Path) -> bool:
    with exchange_attempt(model) as answer:
        return answer


def test_it_is_given_up_after_some_deaths_until_the_model_changes(model: Path) -> None:
    assert [dies(model) for _ in range(MOST_DEATHS + 1)] == [7] * MOST_DEATHS + [0]
    assert not may_be_tried(model)
    os.utime(model, ns=(1, 1))
    assert may_be_tried(model)


def test_what_ends_in_its_process_is_forgotten(model: Path) -> None:
    assert dies(model) == 7
    with pytest.raises(RuntimeError), exchange_attempt(model):
        raise RuntimeError
    assert [dies(model) for _ in range(MOST_DEATHS)] == [7] * MOST_DEATHS


def test_where_no_note_can_be_written_it_is_tried(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", "/proc/nowhere")
    assert may_be_tried(model)
