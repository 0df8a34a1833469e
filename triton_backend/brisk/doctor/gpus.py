"""Checks of what a model on a GPU needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from brisk.doctor.deployment import Deployment, Findings, advice, good, problem
from brisk.errors import BriskError
from brisk.gpu.driver import Context, Driver

ASK_TIMEOUT_S = 120.0

DRIVERS_FILE = Path("/dev/nvidiactl")

_ALTERNATIVE = "instance_group [ { kind: KIND_CPU } ] in entries that are to run on the processor"

_ASK = """
import importlib.util, json
found = {}
if importlib.util.find_spec("torch"):
    import torch
    found["torch"] = torch.__version__
    found["torch_cuda"] = torch.version.cuda
    found["seen"] = torch.cuda.device_count()
import onnxruntime
found["onnxruntime"] = onnxruntime.__version__
found["provider"] = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
print(json.dumps(found))
"""


def gpus(deployment: Deployment) -> Findings:
    """Whether there is one, and so where entries run that do not say; what computes there."""
    if not DRIVERS_FILE.exists():
        return good("none here: entries without an instance_group run on the processor")
    try:
        driver = Driver()
        named = _names(driver)
    except BriskError as error:
        return problem(str(error), "entries on a GPU are not served", _ALTERNATIVE)
    there = f"{named}, driver for CUDA {'.'.join(map(str, driver.version))}"
    python = deployment.environment.get("BRISK_PYTHON") or sys.executable
    asked = _ask(python, deployment)
    if isinstance(asked, str):
        return problem(f"{there}; {python}: {asked}", "no model is served", _ALTERNATIVE)
    return [*_computing(there, python, asked), *_provider(python, asked)]


def _computing(there: str, python: str, asked: dict[str, Any]) -> Findings:
    cost = "entries without an instance_group are for the GPU here, and are not served"
    if "torch" not in asked:
        return problem(
            f"{there}; {python} has no torch, which computes there",
            cost,
            f"pip install 'brisk-triton[gpu]' for {python}, or {_ALTERNATIVE}",
        )
    kind = f"CUDA {asked['torch_cuda']}" if asked["torch_cuda"] else "for processors"
    built = f"torch {asked['torch']} ({kind})"
    if not asked["seen"]:
        return problem(
            f"{there}; {built} of {python} sees none of them",
            cost,
            f"a build of torch for CUDA no newer than the driver's, or {_ALTERNATIVE}",
        )
    return good(f"{there}; {built}: entries without an instance_group run on the GPU")


def _provider(python: str, asked: dict[str, Any]) -> Findings:
    """onnxruntime and onnxruntime-gpu are one module in two builds: what came last counts."""
    if asked["provider"]:
        return good(f"onnxruntime {asked['onnxruntime']} has its CUDA provider")
    return advice(
        f"onnxruntime {asked['onnxruntime']} of {python} is the build for processors",
        "models on a GPU are computed by torch alone, not by whichever is faster",
        "pip uninstall onnxruntime, then pip install onnxruntime-gpu",
    )


def _names(driver: Driver) -> str:
    found = []
    for ordinal in range(driver.devices):
        context = Context(driver, ordinal)
        found.append(context.facts.name)
        context.close()
    return ", ".join(found)


def _ask(python: str, deployment: Deployment) -> dict[str, Any] | str:
    """What that Python has, or why that cannot be told."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            env=dict(deployment.environment),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
