"""What ``model.py`` imports, in a process whose module path is that of Triton's stub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import brisk

BACKEND = Path(brisk.__file__).resolve().parents[1]

STUB = """
import sys
sys.path.insert(0, "")  # as pybind11 does where a process has no script
sys.path.insert(1, sys.argv[1])  # another Brisk of this Python's
sys.path.append(sys.argv[2])
import triton_python_backend_utils, model, brisk
print(brisk.__file__)
"""


def environment_of(folder: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "BRISK_RUNTIME_DIR": str(folder / "runtime"),
        "BRISK_PYTHON": "/bin/true",
    }


def test_a_working_directory_that_has_been_removed_is_no_matter(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    ended = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import os; os.rmdir({str(gone)!r}){STUB}",
            "",
            str(BACKEND),
        ],
        cwd=gone,
        env=environment_of(tmp_path),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr


def test_neither_the_working_directory_s_modules_nor_another_brisk_are_imported(
    tmp_path: Path,
) -> None:
    working, packages = tmp_path / "working", tmp_path / "packages"
    for place in (working / "brisk.py", working / "numpy.py", packages / "brisk" / "__init__.py"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"raise SystemExit('{place} was run')")
    ended = subprocess.run(
        [sys.executable, "-I", "-c", STUB, str(packages), str(BACKEND)],
        cwd=working,
        env=environment_of(tmp_path),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert Path(ended.stdout.strip()) == BACKEND / "brisk" / "__init__.py"
