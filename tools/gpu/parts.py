"""The probe's questions to a device, a function for each, with what it decides.

Each takes the place and the folder of models, and returns what is printed as one line of JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from captures import capture, chunk_costs, searches, shapes, workspaces_of
from engine import engine, serving
from place import (
    BoundRun,
    Place,
    Timer,
    import_onnxruntime,
    told,
)
from preempting import beside, loading, preemption

from brisk.gpu.driver import CudaError, DeviceMemory, Stream

Part = Callable[[Place, Path], Mapping[str, Any]]


def facts(place: Place, models: Path) -> Mapping[str, Any]:
    """Measure sizes and rates: a context, sessions, and copies from pages of several kinds."""
    context = place.context
    free, total = context.memory()
    found: dict[str, Any] = {
        "device": context.facts._asdict(),
        "cuda": place.driver.version,
        "context_mib": round((total - free) / 2**20),
        "onnxruntime": import_onnxruntime().__version__,
        "providers": import_onnxruntime().get_available_providers(),
    }
    size = 64 << 20
    array = np.ones(size, np.uint8)
    stream, memory = context.stream(), context.allocate(size)
    timer = Timer(place, stream)
    found["pageable_gb_s"] = _rate(
        timer, size, lambda: stream.to_device(memory, array.ctypes.data, size)
    )
    begun = time.perf_counter()
    with context.registered(array.ctypes.data, size):
        found["register_ms"] = (time.perf_counter() - begun) * 1e3
        found["registered_gb_s"] = _rate(
            timer, size, lambda: stream.to_device(memory, array.ctypes.data, size)
        )
        found["registered_back_gb_s"] = _rate(
            timer, size, lambda: stream.to_host(array.ctypes.data, memory, size)
        )
    found["shared_registered_gb_s"] = _shared_rate(place, timer, stream, memory, size)
    before = context.memory()[0]
    run = BoundRun(place, place.session(models / "mlp.onnx", stream), stream)
    found["first_session_mib"] = round((before - context.memory()[0]) / 2**20)
    before = context.memory()[0]
    other = BoundRun(place, place.session(models / "mlp.onnx", stream), stream)
    found["second_session_mib"] = round((before - context.memory()[0]) / 2**20)
    for each in (run, other):
        each.close()
    return found


def _shared_rate(
    place: Place, timer: Timer, stream: Stream, memory: DeviceMemory, size: int
) -> float | str:
    """Measure copies from memory that several processes map, as tensors of requests are."""
    descriptor = os.memfd_create("probe")
    try:
        os.truncate(descriptor, size)
        mapped = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        mapped.fill(1)
        with place.context.registered(mapped.ctypes.data, size):
            return _rate(timer, size, lambda: stream.to_device(memory, mapped.ctypes.data, size))
    except CudaError as error:
        return told(error)
    finally:
        os.close(descriptor)


def asynchronous(place: Place, models: Path) -> Mapping[str, Any]:
    """Check that a run is issued without waiting for the device: the design needs it."""
    stream = place.context.stream()
    found = {}
    for name in ("resnet50", "encoder"):
        run = BoundRun(place, place.session(models / f"{name}.onnx", stream), stream)
        for _ in range(3):
            run.issue()
        stream.synchronise()
        begun = time.perf_counter()
        place.spin(stream, 50)
        spun = time.perf_counter()
        run.issue()
        issued = time.perf_counter()
        was_busy = not stream.is_done()
        stream.synchronise()
        found[name] = {
            "launch_ms": (spun - begun) * 1e3,
            "issue_ms": (issued - spun) * 1e3,
            "waited_ms": (time.perf_counter() - issued) * 1e3,
            "is_asynchronous": was_busy and issued - spun < 0.04,
        }
        run.close()
    return found


def cold(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """Time, in fresh processes, each stage of a first answer, and of a second model's."""
    for search, first, second in (
        ("HEURISTIC", "resnet50", "encoder"),
        ("HEURISTIC", "encoder", "resnet50"),
        ("EXHAUSTIVE", "resnet50", "encoder"),
    ):
        command = [sys.executable, __file__, search, first, second, str(models)]
        command += [place.library] if place.library else []
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=found)
        line = (done.stdout.strip().splitlines() or ["{}"])[-1]
        if done.returncode:
            yield {"search": search, "first": first, "error": done.stderr[-500:]}
        else:
            yield {"search": search, "first": first, "second": second, **json.loads(line)}


def _cold_process(search: str, first: str, second: str, models: Path, library: str | None) -> None:
    """Run as the process itself; times are ms, each stage after the one before."""
    times: dict[str, float] = {}
    last = time.perf_counter()

    def passed(stage: str) -> None:
        nonlocal last
        now = time.perf_counter()
        times[stage], last = (now - last) * 1e3, now

    import_onnxruntime()
    passed("import")
    place = Place(library)
    passed("context")
    stream = place.context.stream()
    small = BoundRun(place, place.session(models / "mlp.onnx", stream), stream)
    small.answers()
    passed("handles, by a small model")
    for name in (first, second):
        session = place.session(models / f"{name}.onnx", stream, cudnn_conv_algo_search=search)
        passed(f"{name}: session")
        run = BoundRun(place, session, stream)
        run.answers()
        passed(f"{name}: first answer")
        run.issue()
        run.answers()
        passed(f"{name}: second answer")
    print(json.dumps({"ms": times}))


def _rate(timer: Timer, size: int, issue: Callable[[], object]) -> float:
    return size / timer.medians(issue)["device_ms"] / 1e6 if size else 0.0


PARTS: Mapping[str, tuple[Part | Callable[[Place, Path], Iterator[Mapping[str, Any]]], int]] = {
    "facts": (facts, 30),
    "workspaces": (workspaces_of, 40),
    "asynchronous": (asynchronous, 30),
    "capture": (capture, 110),
    "chunks": (chunk_costs, 30),
    "preemption": (preemption, 50),
    "beside": (beside, 60),
    "loading": (loading, 40),
    "cold": (cold, 60),
    "shapes": (shapes, 40),
    "searches": (searches, 60),
    "engine": (engine, 100),
    "serving": (serving, 45),
}
"""Parts with the seconds that each may take, in the order of what they decide."""


if __name__ == "__main__":
    _cold_process(*sys.argv[1:4], Path(sys.argv[4]), *(sys.argv[5:] or [None]))  # type: ignore[arg-type]
    os._exit(0)  # what is left is the device's to give back
