"""The place of the probe's parts: a device, ONNX Runtime on it, and streams of ours.

With a stand-in for the driver (``fake_driver.c``) the same calls are made on a processor: device
memory is the process's own then, and sessions compute there.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from brisk.fork_server.build import WORKSPACE, gpu_library
from brisk.gpu.driver import LIBRARY, Context, DeviceMemory, Driver, Event, Module, Stream
from brisk.gpu.graphs import Executable, Graph, capturing
from brisk.gpu.libraries import give_workspaces, load_libraries

KERNELS = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 duration_ns) {
    .reg .u64 %now, %until, %duration;
    .reg .pred %early;
    ld.param.u64 %duration, [duration_ns];
    mov.u64 %now, %globaltimer;
    add.u64 %until, %now, %duration;
AGAIN:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %early, %now, %until;
    @%early bra AGAIN;
    ret;
}
.visible .entry mark(.param .u64 address) {
    .reg .u64 %at;
    .reg .u32 %one;
    ld.param.u64 %at, [address];
    mov.u32 %one, 1;
    st.volatile.global.u32 [%at], %one;
    membar.sys;
    ret;
}
"""

CHUNK_US = 100.0

OPEN_SIZE = 128
"""The size of an input's dimensions, other than its rows, that the model leaves open."""

MOST_S = 0.4
"""The longest time that one figure's repetitions take."""


class Place:
    """A device. ``library``: the driver's stand-in; without it the device is cuda:0."""

    def __init__(self, library: str | None) -> None:
        self.is_dry = library is not None
        self.device = "cpu" if self.is_dry else "cuda"
        self.library = library
        self.context = Context(Driver(library or LIBRARY))
        self._kernels: Module | None = None

    @property
    def driver(self) -> Driver:
        return self.context.driver

    @property
    def kernels(self) -> Module:
        if self._kernels is None:
            self._kernels = self.context.module(KERNELS)
        return self._kernels

    def spin(self, stream: Stream, ms: float, blocks: int = 1) -> None:
        self.kernels.launch("spin", stream, blocks, 32, [ctypes.c_uint64(int(ms * 1e6))])

    def mark(self, stream: Stream, address: int) -> None:
        """Launch a kernel that writes 1 to ``address``, which is on the device."""
        self.kernels.launch("mark", stream, 1, 1, [ctypes.c_uint64(address)])

    def session(self, path: Path, stream: Stream | None, **options: str) -> Any:
        """Open a session of ONNX Runtime, all on the device. ``options``: of the CUDA provider."""
        ort = import_onnxruntime()
        chosen = ort.SessionOptions()
        chosen.log_severity_level = 3
        if self.is_dry:
            return ort.InferenceSession(str(path), chosen, providers=["CPUExecutionProvider"])
        told = {
            "device_id": "0",
            "arena_extend_strategy": "kSameAsRequested",
            "cudnn_conv_algo_search": "HEURISTIC",
            **options,
        }
        if stream is not None:
            told["user_compute_stream"] = str(stream.handle)
        session = ort.InferenceSession(
            str(path), chosen, providers=[("CUDAExecutionProvider", told)]
        )
        if session.get_providers()[0] != "CUDAExecutionProvider":
            raise RuntimeError(f"ONNX Runtime fell back to {session.get_providers()}")
        return session


@functools.cache
def import_onnxruntime() -> Any:
    """Import ONNX Runtime with CUDA's libraries from packages of their own.

    Unless ``BRISK_PROBE_WORKSPACE`` is empty, cuBLAS's handles get memory of their own.
    """
    loaded = load_libraries()
    if loaded and os.environ.get("BRISK_PROBE_WORKSPACE", "1"):
        give_workspaces(gpu_library(WORKSPACE), loaded)
    import onnxruntime

    return onnxruntime


class BoundRun:
    """A session's runs on the same memory of the device, for one number of rows."""

    def __init__(self, place: Place, session: Any, stream: Stream, rows: int = 1) -> None:
        self.place, self.session, self.stream, self._rows = place, session, stream, rows
        self.memory: list[DeviceMemory] = []
        self._answers: dict[str, tuple[DeviceMemory, np.ndarray]] = {}
        self._binding = session.io_binding()
        self._options = import_onnxruntime().RunOptions()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._given: dict[str, tuple[DeviceMemory, np.ndarray]] = {}
        for name, array in inputs_of(session, rows).items():
            self._given[name] = self._allocate(array.nbytes), array
            self._bind("bind_input", name, array, self._given[name][0])
        self.set_inputs(0)
        for output in session.get_outputs():
            self._binding.bind_output(output.name, place.device)
        session.run_with_iobinding(self._binding)
        made = self._binding.get_outputs()
        for output, value in zip(session.get_outputs(), made, strict=True):
            array = np.empty(value.shape(), _dtype(output.type))
            self._answers[output.name] = (self._allocate(array.nbytes), array)
        self._binding.clear_binding_outputs()
        for name, (memory, array) in self._answers.items():
            self._bind("bind_output", name, array, memory)

    def close(self) -> None:
        for memory in self.memory:
            memory.close()

    def set_inputs(self, seed: int) -> None:
        """Copy other inputs of the same shapes to the device."""
        for name, array in inputs_of(self.session, self._rows, seed).items():
            self.stream.to_device(self._given[name][0], array.ctypes.data, array.nbytes)
            self.stream.synchronise()

    def issue(self) -> None:
        """Run once; return when the run is issued, if ONNX Runtime does not wait."""
        self.session.run_with_iobinding(self._binding, self._options)

    def poison(self) -> None:
        """Overwrite the answers, so that a run that writes none is noticed."""
        for memory, array in self._answers.values():
            array.view(np.uint8).fill(0xFF)
            self.stream.to_device(memory, array.ctypes.data, array.nbytes)
        self.stream.synchronise()

    def answers(self) -> dict[str, np.ndarray]:
        for memory, array in self._answers.values():
            self.stream.to_host(array.ctypes.data, memory, array.nbytes)
        self.stream.synchronise()
        return {name: array.copy() for name, (_, array) in self._answers.items()}

    def capture(self) -> Graph:
        """Capture one run, after two that make all that is made only once."""
        for _ in range(2):
            self.issue()
        self.stream.synchronise()
        with capturing(self.place.driver, self.stream) as found:
            self.issue()
        return found[0]

    def _allocate(self, size: int) -> DeviceMemory:
        self.memory.append(self.place.context.allocate(max(size, 1)))
        return self.memory[-1]

    def _bind(self, what: str, name: str, array: np.ndarray, memory: DeviceMemory) -> None:
        getattr(self._binding, what)(
            name, self.place.device, 0, array.dtype, array.shape, memory.handle
        )


def inputs_of(session: Any, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return seeded inputs; integers are 0 or 1, which no table is too small for."""
    random = np.random.default_rng(seed)
    found = {}
    for given in session.get_inputs():
        shape = [each if isinstance(each, int) and each > 0 else OPEN_SIZE for each in given.shape]
        if shape and not isinstance(given.shape[0], int):
            shape[0] = rows
        dtype = _dtype(given.type)
        array = (
            random.standard_normal(shape) if dtype.kind == "f" else random.integers(0, 2, shape)
        )
        found[given.name] = np.ascontiguousarray(array.astype(dtype))
    return found


def _dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of ONNX Runtime's name, such as tensor(float)."""
    inner = name.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64"}.get(inner, inner))


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Whether the answers are the same bit for bit."""
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


def difference(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference, relative to the output's largest value."""
    return max(
        float(np.abs(one[name].astype(np.float64) - other[name]).max())
        / max(float(np.abs(other[name]).max()), 1e-30)
        for name in one
    )


class Timer:
    """Times the work given to a stream, on the device and for a caller that waits for it."""

    def __init__(self, place: Place, stream: Stream) -> None:
        self.stream = stream
        self._most_s = 0.02 if place.is_dry else MOST_S
        self._first, self._last = place.context.event(), place.context.event()

    def medians(self, issue: Callable[[], object], least: int = 10) -> dict[str, float]:
        """Return ms on the device, ms until it is done, ms of the call; each a median."""
        for _ in range(3):
            issue()
        self.stream.synchronise()
        rows: list[tuple[float, float, float]] = []
        until_s = time.perf_counter() + self._most_s
        while len(rows) < least or (time.perf_counter() < until_s and len(rows) < 300):
            rows.append(self._once(issue))
        device, waited, called = (statistics.median(column) for column in zip(*rows, strict=True))
        return {"device_ms": device, "waited_ms": waited, "called_ms": called}

    def device_us(self, issue: Callable[[], object]) -> float:
        """Return the least of three times, in µs, which the device takes undisturbed."""
        return min(self._once(issue)[0] for _ in range(3)) * 1e3

    def _once(self, issue: Callable[[], object]) -> tuple[float, float, float]:
        begun = time.perf_counter()
        self._first.record(self.stream)
        issue()
        issued = time.perf_counter()
        self._last.record(self.stream)
        self.stream.synchronise()
        ended = time.perf_counter()
        return (
            self._last.ms_since(self._first),
            (ended - begun) * 1e3,
            (issued - begun) * 1e3,
        )


def node_times_us(
    place: Place, graph: Graph, timer: Timer, sources: Mapping[int, int] | None = None
) -> list[float]:
    """Time each node as a graph of its own, less what a launch takes, so that the times add up to
    that of the whole graph.

    They run in the graph's order: out of it, a kernel may wait for ever for what another one
    writes.
    """
    stream = timer.stream
    alone = [graph.executable(index, index + 1, sources) for index in range(len(graph.nodes))]
    events = [place.context.event() for _ in range(len(alone) + 1)]
    for each in alone:
        each.upload(stream)
    passes = []
    for _ in range(3):
        for event, made in zip(events, alone, strict=False):
            event.record(stream)
            made.launch(stream)
        events[-1].record(stream)
        stream.synchronise()
        passes.append([b.ms_since(a) * 1e3 for a, b in itertools.pairwise(events)])
    for one in (*alone, *events):
        one.close()
    found = [statistics.median(column) for column in zip(*passes, strict=True)]
    whole = graph.executable(sources=sources)
    whole.upload(stream)
    whole_us = timer.device_us(lambda: whole.launch(stream))
    whole.close()
    launch_us = max((sum(found) - whole_us) / len(found), 0.0)
    return [max(each - launch_us, 0.1) for each in found]


def launch_all(parts: Sequence[Executable], stream: Stream) -> None:
    for part in parts:
        part.launch(stream)


def event_of(place: Place, stream: Stream) -> Event:
    """Return an event recorded on the stream."""
    made = place.context.event()
    made.record(stream)
    return made


def in_process(
    place: Place, file: str, what: str, model: str, setting: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    """Run ``what`` of a file of parts on a model, in a process of its own; return its answer."""
    command = [sys.executable, "-X", "faulthandler", file, what, model]
    command += [place.library] if place.library else []
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(setting or {})}
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    took = {"process_s": time.perf_counter() - begun}
    line = (done.stdout.strip().splitlines() or ["{}"])[-1]
    if done.returncode:
        return {**took, "error": done.stderr[-700:]}
    found: Mapping[str, Any] = json.loads(line)
    return {**took, **found}


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:400]
