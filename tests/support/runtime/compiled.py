"""Libraries that tests compile from a few lines of C."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def compile_shared(path: Path, source: str, *flags: str) -> Path:
    """Compile a shared library: a new file, in the place of an old one; its source is removed.

    Skips the test where there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(f"no C compiler (cc, gcc) is here to make {path.name}")
    text, library = path.with_suffix(".c"), path.with_suffix(".new")
    text.write_text(source)
    options = ["-shared", "-fPIC", "-O1", "-w", "-std=gnu99", *flags]
    subprocess.run([compiler, "-o", str(library), str(text), *options], check=True, timeout=120)
    text.unlink()
    library.chmod(0o755)
    os.replace(library, path)
    return path
