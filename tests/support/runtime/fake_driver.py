"""The stand-in for NVIDIA's driver of ``tools/gpu``, built once a session of tests."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3] / "tools" / "gpu" / "fake_driver.c"


@functools.cache
def fake_driver() -> str:
    """Path of the library. Skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = Path(tempfile.mkdtemp(prefix="brisk-driver-")) / "libfake.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    return str(library)
