"""What a stub of Brisk's does instead of importing numpy before it asks for the model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import brisk

PACKAGE = Path(brisk.__file__).resolve().parent.parent

TRITON = """
import numpy

TYPES = {"TYPE_FP32": numpy.float32}
Tensor = "of Triton's file"

def serialize_byte_tensor(tensor):
    return Tensor, tensor

def deserialize_bytes_tensor(encoded):
    return "read", encoded
"""
BEGINNING = """
import sys
import triton_python_backend_utils as utils
looked_up = utils.get_model_dir, getattr(utils, "__wrapped__", None)
assert looked_up == (None, None), looked_up
utils.Tensor = "of the stub"
functions = utils.serialize_byte_tensor, utils.deserialize_bytes_tensor
assert "numpy" not in sys.modules
"""


def run(tmp_path: Path, code: str, with_triton: bool = True) -> subprocess.CompletedProcess[str]:
    """As a stub imports: Brisk's backend first, then Triton's folder."""
    own, theirs = tmp_path / "brisk", tmp_path / "python"
    own.mkdir()
    theirs.mkdir()
    shutil.copy2(PACKAGE / "triton_python_backend_utils.py", own)
    if with_triton:
        (theirs / "triton_python_backend_utils.py").write_text(TRITON)
    return subprocess.run(
        [sys.executable, "-c", BEGINNING + code],
        env={**os.environ, "PYTHONPATH": f"{own}{os.pathsep}{theirs}"},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "code",
    [
        "assert utils.TYPES['TYPE_FP32'].__name__ == 'float32'; assert 'numpy' in sys.modules",
        "assert functions[0](3) == ('of the stub', 3)",
        "assert functions[1](b'x') == ('read', b'x')",
        "utils.TYPES; assert utils.Tensor == 'of the stub'",
        "functions[0](1); assert utils.serialize_byte_tensor is not functions[0]",
    ],
    ids=["a constant", "writing strings", "reading strings", "the stub's own", "once"],
)
def test_triton_s_file_is_run_when_it_is_asked_for(tmp_path: Path, code: str) -> None:
    ended = run(tmp_path, code)
    assert ended.returncode == 0, ended.stderr


def test_what_triton_s_file_lacks_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, "utils.Quantizer")
    assert "has no attribute 'Quantizer'" in ended.stderr


def test_without_triton_s_file_the_error_says_what_was_sought(tmp_path: Path) -> None:
    ended = run(tmp_path, "utils.TYPES", with_triton=False)
    assert "ImportError: Triton's own triton_python_backend_utils.py is not on" in ended.stderr


INTAKE = """
import os, sys, types
sys.modules["triton_python_backend_utils"] = types.ModuleType("triton_python_backend_utils")
from brisk.stub.backend import import_request_handler
before = dict(os.environ)
finders = list(sys.meta_path)
print(import_request_handler().__name__, dict(os.environ) == before, sys.meta_path == finders)
print(type(sys.modules["numpy.random"]).__name__)
import numpy
print(len(os.listdir("/proc/self/task")), numpy.random.default_rng(1).integers(3, 4))
print(numpy.ma.masked_equal([1, 2], 2).sum(), numpy.fft.fft([1.0]).real[0])
"""


@pytest.mark.parametrize("chosen", [None, "2"])
def test_an_intake_s_numpy_brings_no_threads_and_runs_the_rest_of_it_on_demand(
    chosen: str | None,
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    environment.pop("OPENBLAS_NUM_THREADS", None)
    if chosen is not None:
        environment["OPENBLAS_NUM_THREADS"] = chosen
    ended = subprocess.run(
        [sys.executable, "-c", INTAKE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    imported, kind, threads, rest = ended.stdout.splitlines()
    assert imported == "RequestHandler True True"
    assert kind == "_Deferred"
    count = 1 if chosen is None else min(2, len(os.sched_getaffinity(0)))
    assert threads == f"{count} 3"
    assert rest == "1 1.0"
