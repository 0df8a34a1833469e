"""Placing the launcher, with a compiler and without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from brisk.fork_server import build
from brisk.fork_server.build import LAUNCHER, place_launchers
from brisk.fork_server.start import PRELOAD, SERVER_PRELOAD


def test_without_a_compiler_stubs_start_as_triton_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (LAUNCHER, PRELOAD, SERVER_PRELOAD):
        (tmp_path / name).write_text("of another Brisk")
    monkeypatch.setenv("CXX", "/absent")
    assert not place_launchers([tmp_path])
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "/bin/false")
    (tmp_path / "backend").mkdir()
    assert not place_launchers([tmp_path / "backend"])


def test_files_made_ahead_are_taken_where_there_is_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share, backend = tmp_path / "share" / "brisk", tmp_path / "backend"
    share.mkdir(parents=True)
    backend.mkdir()
    compiler = subprocess.run([sys.executable, "-m", build.__name__, str(share)])
    if compiler.returncode:
        pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("CXX", "/absent")
    assert place_launchers([backend])
    for name in (LAUNCHER, PRELOAD, SERVER_PRELOAD):
        assert (backend / name).read_bytes() == (share / name).read_bytes()
        assert (backend / name).stat().st_mode & 0o777 == 0o755


def test_making_them_ahead_without_a_compiler_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "/absent")
    monkeypatch.setattr(sys, "argv", ["build", str(tmp_path)])
    assert build.main() == 1
    assert "no C++ compiler (/absent)" in capsys.readouterr().err
