"""The runtime's Python: it needs onnxruntime, onnx and numpy; Triton's own needs numpy 1 only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from brisk.doctor.base import Deployment, Finding, Severity

NAME = "runtime's Python"
TIMEOUT_S = 120.0
_PROGRAM = (
    "import onnxruntime, onnx, numpy; print(f'onnxruntime {onnxruntime.__version__}, "
    "onnx {onnx.__version__}, numpy {numpy.__version__}')"
)


def look(deployment: Deployment) -> Iterator[Finding]:
    python = deployment.environment.get("BRISK_PYTHON") or sys.executable
    environment = {
        **deployment.environment,
        "OMP_NUM_THREADS": "1",
        "ORT_DISABLE_TELEMETRY": "1",
    }
    try:
        done = subprocess.run(
            [python, "-c", _PROGRAM],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=environment,
            check=False,
        )
        problem = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = [str(error)]
    if not problem:
        yield Finding(NAME, Severity.GOOD, f"{python}: {done.stdout.strip()}")
        return
    yield Finding(
        NAME,
        Severity.PROBLEM,
        f"{python}: {problem[0]}",
        "no model can be loaded",
        "BRISK_PYTHON=<a Python that has onnxruntime, onnx and numpy> for tritonserver",
    )
