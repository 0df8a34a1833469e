"""What every load pays for: the start of a stub, before its model is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import brisk

PACKAGE = Path(brisk.__file__).resolve().parent.parent

NOT_WANTED = (
    "dataclasses",
    "difflib",
    "inspect",
    "numpy",
    "shutil",
    "subprocess",
    "brisk.pipelines",
    "brisk.stub.config.signature",
)
"""Each takes 1 to 60 ms, and a usual load has no use for it, or has while it waits."""

STUB = """
import inspect, sys, types

class Logger:
    @staticmethod
    def log_info(text):
        # As Triton's own does, in C++: its caller is the innermost frame of Python.
        text.encode()  # as well
        print(text, inspect.getframeinfo(sys._getframe(1)).filename)

    log_warn = log_error = log_info

utils = types.ModuleType("triton_python_backend_utils")
utils.Logger = Logger
sys.modules[utils.__name__] = utils
before = set(sys.modules)
import brisk.stub.backend
print(*sorted(set(sys.modules) - before))

def refuse(*_):
    raise AssertionError("a module's file was asked for")

inspect.getabsfile = refuse
brisk.stub.backend.log("info", "ready")
brisk.stub.backend.log("info", "/caf\\udce9")
"""


def test_a_stub_imports_little_and_its_first_line_of_log_is_cheap() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUB],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    imported, said, path = ended.stdout.splitlines()
    assert "brisk.stub.runtime_client.client" in imported.split()
    assert not set(imported.split()) & set(NOT_WANTED)
    assert said.split() == ["ready", str(PACKAGE / "brisk" / "stub" / "backend.py")]
    assert path.startswith(r"/caf\udce9 "), "a path that is no UTF-8, which Triton's log needs"


REFUSED = """
import sys, types

class TritonModelException(Exception):
    pass

utils = types.ModuleType("triton_python_backend_utils")
utils.TritonModelException = TritonModelException
sys.modules[utils.__name__] = utils
import brisk.stub.backend as backend

backend.hide_region = backend.end_with_server = backend.command_line = lambda: None
backend.attend_launchers = lambda arguments, niceness: None
try:
    backend.ModelInstance({"model_name": "m", "model_version": "3"})
except TritonModelException as error:
    print(error)
"""


def test_a_setting_of_stubs_that_is_wrong_refuses_the_load_by_its_name() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", REFUSED],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "BRISK_FORK_STUBS": "false"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    refused = "brisk: model 'm' version 3: BRISK_FORK_STUBS must be 1 "
    assert ended.stdout.startswith(refused), ended.stderr
