"""Python files compiled ahead of those who import them."""

import importlib.util
from pathlib import Path

import pytest

from brisk.triton.backend_directory import compile_files


def _compiled(file: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(file)))


def test_files_are_compiled_where_python_may_not_write_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    files = [tmp_path / "alone.py", inner / "module.py"]
    for file in files:
        file.write_text("x = 1\n")
    compile_files(tmp_path / "alone.py", tmp_path / "package")
    assert all(_compiled(file).is_file() for file in files)
    before = _compiled(files[0]).stat().st_mtime_ns
    compile_files(tmp_path / "alone.py")
    assert _compiled(files[0]).stat().st_mtime_ns == before


def test_a_place_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("x = 1\n")
    (tmp_path / "__pycache__").touch()  # a file: no directory can be made, even by root
    compile_files(tmp_path / "module.py")
    compile_files(tmp_path)
    assert (tmp_path / "__pycache__").is_file()
