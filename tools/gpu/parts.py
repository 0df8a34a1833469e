"""What the probe asks of a device, a function for each question, with what it decides.

Each takes the place and the folder of models, and returns what is printed as one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from place import (
    BoundRun,
    Place,
    Timer,
    difference,
    event_of,
    import_onnxruntime,
    launch_all,
    node_times_us,
    same,
)

from brisk.gpu.driver import CudaError, Stream
from brisk.gpu.graphs import Executable, chunks

CHUNK_US = 100.0

Part = Callable[[Place, Path], Mapping[str, Any]]


def facts(place: Place, models: Path) -> Mapping[str, Any]:
    """Sizes: what a context, a session and pages that the device reads by itself take and give."""
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
    before = context.memory()[0]
    run = BoundRun(place, place.session(models / "mlp.onnx", stream), stream)
    found["first_session_mib"] = round((before - context.memory()[0]) / 2**20)
    before = context.memory()[0]
    other = BoundRun(place, place.session(models / "mlp.onnx", stream), stream)
    found["second_session_mib"] = round((before - context.memory()[0]) / 2**20)
    for each in (run, other):
        each.close()
    return found


def asynchronous(place: Place, models: Path) -> Mapping[str, Any]:
    """Whether a run is issued without waiting for the device: the design at all."""
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


def capture(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """Which models can be captured, and what a run takes plain, by ONNX Runtime's own graph, by
    ours, and by ours in chunks: go or no go.
    """
    for path in sorted(models.glob("*.onnx")):
        try:
            yield {"model": path.stem, **_captured(place, path)}
        except Exception as error:
            yield {"model": path.stem, "error": _told(error)}
            if isinstance(error, CudaError) and error.is_sticky:
                raise


def _captured(place: Place, path: Path) -> dict[str, Any]:
    stream = place.context.stream()
    timer = Timer(place, stream)
    begun = time.perf_counter()
    run = BoundRun(place, place.session(path, stream), stream)
    found: dict[str, Any] = {"session_ms": (time.perf_counter() - begun) * 1e3}
    run.poison()
    run.issue()
    plain = run.answers()
    found["differs_from_cpu"] = difference(plain, _on_cpu(place, path, run))
    found["plain"] = timer.medians(run.issue)
    found["own_graph"] = _own_graph(place, path)
    begun = time.perf_counter()
    graph = run.capture()
    whole = graph.executable()
    whole.upload(stream)
    stream.synchronise()
    found["capture_ms"] = (time.perf_counter() - begun) * 1e3
    found["nodes"] = graph.kinds()
    run.poison()
    whole.launch(stream)
    found["bits"] = same(run.answers(), plain)
    found["whole"] = timer.medians(lambda: whole.launch(stream))
    times = node_times_us(place, graph, timer)
    found["longest_nodes_us"] = sorted(times, reverse=True)[:3]
    parts = [graph.executable(*each) for each in chunks(times, CHUNK_US)]
    for part in parts:
        part.upload(stream)
    run.poison()
    launch_all(parts, stream)
    found["chunked_bits"] = same(run.answers(), plain)
    found["chunks"] = len(parts)
    found["chunked"] = timer.medians(lambda: launch_all(parts, stream))
    for each in (*parts, whole, graph, run):
        each.close()
    return found


def _on_cpu(place: Place, path: Path, run: BoundRun) -> dict[str, np.ndarray]:
    from place import inputs_of

    session = import_onnxruntime().InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs_of(session, 1)), strict=True))


def _own_graph(place: Place, path: Path) -> Mapping[str, Any]:
    """ONNX Runtime's: captured by its second run, launched by the ones behind."""
    stream = place.context.stream()
    try:
        session = place.session(path, stream, enable_cuda_graph="1")
        run = BoundRun(place, session, stream)
        found = Timer(place, stream).medians(run.issue)
        run.close()
    except Exception as error:  # noqa: BLE001  # it is the answer
        return {"error": _told(error)}
    return found


def chunk_costs(place: Place, models: Path) -> Mapping[str, Any]:
    """What chunks of some lengths cost: to make, to launch, in memory; whether a node keeps the
    priority of the stream that it was captured on.
    """
    least, most = place.context.facts.priorities
    stream = place.context.stream(most)
    run = BoundRun(place, place.session(models / "resnet50.onnx", stream), stream)
    graph, timer = run.capture(), Timer(place, stream)
    times = node_times_us(place, graph, timer)
    whole = graph.executable()
    found: dict[str, Any] = {
        "priorities": (least, most),
        "priority_of_first_node": graph.priority(0),
        "sum_of_nodes_us": sum(times),
        "whole": timer.medians(lambda: whole.launch(stream)),
    }
    for most_us in (25.0, 50.0, 100.0, 200.0):
        free = place.context.memory()[0]
        begun = time.perf_counter()
        parts = [graph.executable(*each) for each in chunks(times, most_us)]
        made = time.perf_counter()
        for part in parts:
            part.upload(stream)
        stream.synchronise()
        found[f"chunks_of_{most_us:.0f}_us"] = {
            "count": len(parts),
            "make_ms": (made - begun) * 1e3,
            "mib": (free - place.context.memory()[0]) / 2**20,
            **timer.medians(lambda: launch_all(parts, stream)),  # noqa: B023  # called at once
        }
        for part in parts:
            part.close()
    return found


def shapes(place: Place, models: Path) -> Mapping[str, Any]:
    """Rows 1, 2, 4, 8 in turn: what planning convolutions anew costs, and a graph for each."""
    found: dict[str, Any] = {}
    path, rows = models / "resnet50.onnx", (1, 2, 4, 8)
    for search in ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"):
        stream = place.context.stream()
        session = place.session(path, stream, cudnn_conv_algo_search=search)
        runs = [BoundRun(place, session, stream, each) for each in rows]
        timer = Timer(place, stream)
        found[search] = {
            "alike": timer.medians(runs[0].issue)["waited_ms"],
            "in_turn": timer.medians(lambda: [run.issue() for run in runs], least=3)["waited_ms"],  # noqa: B023
        }
        if search == "HEURISTIC":
            graphs = [run.capture().executable() for run in runs]
            found["captured"] = {
                "each": [
                    timer.medians(lambda made=made: made.launch(stream))["waited_ms"]  # type: ignore[misc]  # noqa: B023
                    for made in graphs
                ],
                "in_turn": timer.medians(lambda: launch_all(graphs, stream))["waited_ms"],  # noqa: B023
            }
        for run in runs:
            run.close()
    return found


def cold(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """Fresh processes: what each stage of a first answer takes, and of a second model's."""
    for search in ("HEURISTIC", "EXHAUSTIVE", "DEFAULT"):
        for first, second in (("resnet50", "encoder"), ("encoder", "resnet50")):
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
    """The process itself; times are ms, each stage behind the one before."""
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


def torch_engine(place: Place, models: Path) -> Mapping[str, Any]:
    """The present engine on a GPU, by its own tests: its verdict, once."""
    if place.is_dry:
        return {"skipped": "there is no GPU"}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "tests/gpu"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return {"status": done.returncode, "end": done.stdout[-1500:] + done.stderr[-500:]}


def preemption(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """How long a kernel that is urgent waits for its first block beside ResNet-50 as best effort,
    by what is done about it: the bound on what is outstanding.
    """
    _, most = place.context.facts.priorities
    settings: list[tuple[str, int, int | None]] = [
        ("equal streams", 0, None),
        ("priorities", most, None),
        ("priorities, 4 chunks outstanding", most, 4),
        ("priorities, 2 chunks outstanding", most, 2),
        ("priorities, 1 chunk outstanding", most, 1),
    ]
    stream = place.context.stream()
    run = BoundRun(place, place.session(models / "resnet50.onnx", stream), stream)
    graph = run.capture()
    whole = graph.executable()
    times = node_times_us(place, graph, Timer(place, stream))
    parts = [graph.executable(*each) for each in chunks(times, CHUNK_US)]
    for name, priority, bound in settings:
        urgent = place.context.stream(priority)
        work = [whole] if bound is None else parts
        yield {"setting": name, **_delays(place, stream, urgent, work, bound)}
    try:
        least, group = _green_streams(place)
    except Exception as error:  # noqa: BLE001  # it is the answer
        yield {"setting": "green contexts", "error": _told(error)}
        return
    run = BoundRun(place, place.session(models / "resnet50.onnx", group), group)
    confined = run.capture().executable()
    yield {
        "setting": "green contexts: a quarter kept free",
        **_delays(place, group, least, [confined], None),
    }


def _delays(
    place: Place, stream: Stream, urgent: Stream, work: list[Executable], bound: int | None
) -> Mapping[str, Any]:
    """µs from the launch of a kernel to what it writes, beside ``work`` again and again.

    ``bound``: launches that may be outstanding; None: 0.1 s of them at once.
    """
    flag = np.zeros(1024, np.uint32)
    delays: list[float] = []
    alone: list[float] = []
    with place.context.registered(flag.ctypes.data, flag.nbytes):
        for beside in (False, True):
            for _ in range(200):
                outstanding = [] if not beside else _keep_busy(place, stream, work, bound)
                flag[0] = 0
                begun = time.perf_counter()
                place.mark(urgent, flag.ctypes.data)
                while not flag[0] and time.perf_counter() - begun < 1:
                    pass
                (delays if beside else alone).append((time.perf_counter() - begun) * 1e6)
                stream.synchronise()
                for event in outstanding:
                    event.close()
    found = {}
    for name, values in (("alone", alone), ("beside", delays)):
        values.sort()
        found[f"{name}_p50_us"] = statistics.median(values)
        found[f"{name}_p99_us"] = values[int(len(values) * 0.99)]
    return found


def _keep_busy(
    place: Place, stream: Stream, work: list[Executable], bound: int | None
) -> list[Any]:
    """Issue for some time, at most ``bound`` at once, and leave while work is outstanding."""
    if bound is None:
        for _ in range(10):
            launch_all(work, stream)
        return []
    events: list[Any] = []
    until_s = time.perf_counter() + 0.002 + 0.001 * np.random.default_rng().random()
    index = 0
    while time.perf_counter() < until_s:
        if sum(not event.is_done() for event in events[-bound:]) < bound:
            work[index % len(work)].launch(stream)
            events.append(event_of(place, stream))
            index += 1
    return events


def _green_streams(place: Place) -> tuple[Stream, Stream]:
    """On a quarter of the multiprocessors, and on the others (CUDA programming guide, 4.6)."""
    driver, device = place.driver, place.context.device
    size = 144  # of CUdevResource; room for a later one
    whole, group, rest = (ctypes.create_string_buffer(2 * size) for _ in range(3))
    driver.call("cuDeviceGetDevResource", device, whole, 1)
    count = ctypes.c_uint(1)
    wanted = max(place.context.facts.multiprocessors // 4 // 8 * 8, 1)
    driver.call("cuDevSmResourceSplitByCount", group, ctypes.byref(count), whole, rest, 0, wanted)
    made = []
    for each in (group, rest):
        descriptor = driver.handle("cuDevResourceGenerateDesc", each, 1)
        context = driver.handle("cuGreenCtxCreate", descriptor, device, 1)
        made.append(Stream(driver, driver.handle("cuGreenCtxStreamCreate", context, 1, 0)))
    return made[0], made[1]


def _rate(timer: Timer, size: int, issue: Callable[[], object]) -> float:
    return size / timer.medians(issue)["device_ms"] / 1e6 if size else 0.0


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:400]


PARTS: Mapping[str, tuple[Part | Callable[[Place, Path], Iterator[Mapping[str, Any]]], int]] = {
    "facts": (facts, 30),
    "asynchronous": (asynchronous, 30),
    "capture": (capture, 100),
    "chunks": (chunk_costs, 30),
    "shapes": (shapes, 40),
    "preemption": (preemption, 50),
    "cold": (cold, 90),
    "torch": (torch_engine, 130),
}
"""With the seconds that each may take, in the order of what they decide."""


if __name__ == "__main__":
    _cold_process(*sys.argv[1:4], Path(sys.argv[4]), *(sys.argv[5:] or [None]))  # type: ignore[arg-type]
