"""The checks of the GPUs, their driver and the build of ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from brisk.doctor.deployment import Deployment, Findings, ask_python, good, problem
from brisk.errors import BriskError, UnavailableError
from brisk.gpu.driver import Context, Driver

DRIVERS_FILE = Path("/dev/nvidiactl")

_ALTERNATIVE = "instance_group [ { kind: KIND_CPU } ] in entries that are to run on the processor"

_ASK = """
import contextlib, ctypes, io, json, os
import onnxruntime
from onnxruntime.capi import build_and_package_info as built
found = {"onnxruntime": onnxruntime.__version__, "cuda": getattr(built, "cuda_version", "")}
found["provider"] = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
if found["provider"]:
    with contextlib.redirect_stdout(io.StringIO()):
        getattr(onnxruntime, "preload_dlls", bool)()
    folder = os.path.join(os.path.dirname(onnxruntime.__file__), "capi")
    try:
        ctypes.CDLL("libcudnn.so.9")
        for name in "shared", "cuda":
            library = os.path.join(folder, f"libonnxruntime_providers_{name}.so")
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    except OSError as error:
        found["lacking"] = str(error)
print(json.dumps(found))
"""


def gpus(deployment: Deployment) -> Findings:
    """Check whether there is a GPU, which decides where entries without a device run, and whether
    ONNX Runtime can compute on it."""
    if not DRIVERS_FILE.exists():
        return good("none here: entries without an instance_group run on the processor")
    try:
        driver = Driver()
        named = _names(driver)
    except BriskError as error:
        return problem(str(error), "entries on a GPU are not served", _ALTERNATIVE)
    there = f"{named}, driver for CUDA {'.'.join(map(str, driver.version))}"
    try:
        answer = json.loads(ask_python(deployment, _ASK))
    except UnavailableError as error:
        found = f"{there}; {deployment.python}: {error}"
        return problem(found, "no model is served", _ALTERNATIVE)
    return _computing(there, deployment.python, answer, driver.version)


def _computing(
    there: str, python: str, answer: dict[str, Any], newest: tuple[int, int]
) -> Findings:
    """Check the build of ONNX Runtime: onnxruntime and onnxruntime-gpu are two builds of one
    module, of which the last installed counts."""
    cost = "entries without an instance_group are for the GPU here, and are not served"
    built = f"onnxruntime {answer['onnxruntime']} of {python}"
    if not answer["provider"]:
        return problem(
            f"{there}; {built} is the build for processors",
            cost,
            f"pip uninstall onnxruntime, then pip install onnxruntime-gpu, or {_ALTERNATIVE}",
        )
    built += f", for CUDA {answer['cuda']}" if answer["cuda"] else ""
    if answer["cuda"] and int(answer["cuda"].split(".")[0]) > newest[0]:
        return problem(
            f"{there}; {built}",
            cost,
            f"a driver for it, or an onnxruntime-gpu for the driver's CUDA, or {_ALTERNATIVE}",
        )
    if "lacking" in answer:
        return problem(
            f"{there}; {built}: its provider does not load: {answer['lacking']}",
            cost,
            f"pip install 'onnxruntime-gpu[cuda,cudnn]' for {python}, or {_ALTERNATIVE}",
        )
    return good(f"{there}; {built}: entries without an instance_group run on the GPU")


def _names(driver: Driver) -> str:
    names = []
    for ordinal in range(driver.devices):
        context = Context(driver, ordinal)
        names.append(context.facts.name)
        context.close()
    return ", ".join(names)
