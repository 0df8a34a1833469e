"""What the probe asks of a device, a function for each question, with what it decides.

Each takes the place and the folder of models, and returns what is printed as one line of JSON.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from engine import engine, serving
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

from brisk.gpu.driver import CudaError, DeviceMemory, Event, Stream
from brisk.gpu.graphs import Executable, Graph, chunks

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
    """From memory that several processes map, as tensors of requests are."""
    descriptor = os.memfd_create("probe")
    try:
        os.truncate(descriptor, size)
        mapped = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        mapped.fill(1)
        with place.context.registered(mapped.ctypes.data, size):
            return _rate(timer, size, lambda: stream.to_device(memory, mapped.ctypes.data, size))
    except CudaError as error:
        return _told(error)
    finally:
        os.close(descriptor)


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
    ours, and by ours in chunks: go or no go. Each in a process of its own.
    """
    for path in sorted(models.glob("*.onnx")):
        yield {"model": path.stem, **_in_process(place, "capture", str(path))}


def workspaces_of(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """What cuBLAS does in a capture, by what it was told of its memory."""
    told: dict[str, dict[str, str]] = {
        "nothing": {"BRISK_PROBE_WORKSPACE": ""},
        "small ones": {"BRISK_PROBE_WORKSPACE": "", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        "its own, by us": {},
    }
    for name, setting in told.items():
        yield {"told": name, **_in_process(place, "kinds", str(models / "resnet50.onnx"), setting)}


def _in_process(
    place: Place, what: str, model: str, setting: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    command = [sys.executable, "-X", "faulthandler", __file__, what, model]
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


def _kinds(place: Place, path: Path) -> Mapping[str, Any]:
    before = place.context.memory()[0]
    stream = place.context.stream()
    run = BoundRun(place, place.session(path, stream), stream)
    graph = run.capture()
    return {
        "nodes": graph.kinds(),
        "mib": (before - place.context.memory()[0]) / 2**20,
        "plain": Timer(place, stream).medians(run.issue),
    }


def _captured(place: Place, path: Path) -> dict[str, Any]:
    before = place.context.memory()[0]
    stream = place.context.stream()
    timer = Timer(place, stream)
    begun = time.perf_counter()
    run = BoundRun(place, place.session(path, stream), stream)
    found: dict[str, Any] = {"session_ms": (time.perf_counter() - begun) * 1e3}
    run.poison()
    run.issue()
    plain = run.answers()
    found["differs_from_cpu"] = difference(plain, _on_cpu(place, path, run))
    run.set_inputs(1)
    run.issue()
    other = run.answers()
    found["plain"] = timer.medians(run.issue)
    begun = time.perf_counter()
    try:
        graph = run.capture()
    except CudaError as error:
        found["not_captured"] = _told(error)
        return found
    found["capture_ms"] = (time.perf_counter() - begun) * 1e3
    found["nodes"] = graph.kinds()
    copies = graph.host_copies()
    found["host_copies"] = [(index, each.width_bytes) for index, each in copies.items()]
    sources = {}
    for index, copy in copies.items():
        memory = place.context.allocate(copy.width_bytes)
        stream.to_device(memory, copy.source.host or copy.source.device, copy.width_bytes)
        sources[index] = memory.handle
    stream.synchronise()
    found["can_be_cut"] = graph.can_be_cut
    begun = time.perf_counter()
    whole = graph.executable(sources=sources if graph.can_be_cut else None)
    whole.upload(stream)
    stream.synchronise()
    found["make_ms"] = (time.perf_counter() - begun) * 1e3
    found["mib"] = (before - place.context.memory()[0]) / 2**20
    found["bits"] = []
    for seed, expected in enumerate((plain, other)):
        run.set_inputs(seed)
        run.poison()
        whole.launch(stream)
        found["bits"].append(same(run.answers(), expected) or difference(run.answers(), expected))
    found["whole"] = timer.medians(lambda: whole.launch(stream))
    if graph.can_be_cut:
        found.update(_chunked(place, run, graph, timer, sources, other))
    found["own_graph"] = _own_graph(place, path)
    return found


def _chunked(
    place: Place,
    run: BoundRun,
    graph: Graph,
    timer: Timer,
    sources: Mapping[int, int],
    expected: Mapping[str, np.ndarray],
) -> Mapping[str, Any]:
    begun = time.perf_counter()
    times = node_times_us(place, graph, timer, sources)
    timed = time.perf_counter()
    parts = [graph.executable(*each, sources) for each in chunks(times, CHUNK_US)]
    for part in parts:
        part.upload(run.stream)
    run.stream.synchronise()
    made = time.perf_counter()
    run.poison()
    launch_all(parts, run.stream)
    is_same = same(run.answers(), expected)
    return {
        "longest_nodes_us": sorted(times, reverse=True)[:3],
        "timing_ms": (timed - begun) * 1e3,
        "chunks_made_ms": (made - timed) * 1e3,
        "chunked_bits": is_same,
        "chunks": len(parts),
        "chunked": timer.medians(lambda: launch_all(parts, run.stream)),
    }


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
        at = place.driver.handle("cuMemHostGetDevicePointer_v2", flag.ctypes.data, 0)
        for beside in (False, True):
            for _ in range(200):
                outstanding = [] if not beside else _keep_busy(place, stream, work, bound)
                flag[0] = 0
                begun = time.perf_counter()
                place.mark(urgent, at)
                while not flag[0] and time.perf_counter() - begun < 0.05:
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


def beside(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """What an urgent model's run takes beside one that is not: chunks, of which none is launched
    while the urgent one runs; all of it at once, with and without priorities.
    """
    _, most = place.context.facts.priorities
    seconds = 0.05 if place.is_dry else 1.5
    urgent, other = place.context.stream(most), place.context.stream()
    first = BoundRun(place, place.session(models / "resnet18.onnx", urgent), urgent)
    second = BoundRun(place, place.session(models / "resnet50.onnx", other), other)
    one, graph = first.capture().executable(), second.capture()
    times = node_times_us(place, graph, Timer(place, other))
    yield {
        "beside": "nothing",
        **_runs_beside(place, (urgent, one), (other, []), 1, True, seconds),
    }
    for most_us in (50.0, 100.0, 1e9):
        work = [graph.executable(*each) for each in chunks(times, most_us)]
        for bound, is_held in ((1, True), (2, True), (4, True), (2, False)):
            yield {
                "chunks_us": most_us,
                "outstanding": bound,
                "held_back_meanwhile": is_held,
                **_runs_beside(place, (urgent, one), (other, work), bound, is_held, seconds),
            }


def _runs_beside(
    place: Place,
    urgent: tuple[Stream, Executable],
    other: tuple[Stream, list[Executable]],
    bound: int,
    is_held: bool,
    seconds: float,
) -> Mapping[str, Any]:
    """ms of urgent runs, one each 3 ms; runs of the other a second."""
    stream, work = other
    ends = [place.context.event() for _ in range(bound)]
    taken: list[float] = []
    launched, begun = 0, time.perf_counter()
    due, until_s = begun, begun + seconds
    while due < until_s:
        is_due = time.perf_counter() >= due
        if is_due:
            started = time.perf_counter()
            urgent[1].launch(urgent[0])
        while is_due and not urgent[0].is_done():
            if not is_held and (launched < bound or ends[0].is_done()):
                launched = _launch_next(stream, work, ends, launched)
        if is_due:
            taken.append((time.perf_counter() - started) * 1e3)
            due += 0.003
        elif work and (launched < bound or ends[0].is_done()):
            launched = _launch_next(stream, work, ends, launched)
    place.context.synchronise()
    took_s = time.perf_counter() - begun
    for event in ends:
        event.close()
    taken.sort()
    return {
        "mean_ms": statistics.fmean(taken),
        "p99_ms": taken[int(len(taken) * 0.99)],
        "other_runs_a_second": launched / max(len(work), 1) / took_s,
    }


def _launch_next(stream: Stream, work: list[Executable], ends: list[Event], launched: int) -> int:
    work[launched % len(work)].launch(stream)
    ends.append(ends.pop(0))
    ends[-1].record(stream)
    return launched + 1


def loading(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """What an urgent model's run takes while another thread, or another process, opens sessions,
    runs and captures: where a load may run.
    """
    _, most = place.context.facts.priorities
    urgent = place.context.stream(most)
    run = BoundRun(place, place.session(models / "resnet18.onnx", urgent), urgent)
    graph = run.capture().executable()
    ended = threading.Event()
    seconds = 0.2 if place.is_dry else 4.0

    def load() -> None:
        place.context.enter()
        while not ended.is_set():
            for name in ("resnet50", "encoder"):
                stream = place.context.stream()
                other = BoundRun(place, place.session(models / f"{name}.onnx", stream), stream)
                other.capture().executable().close()
                other.close()
                loaded.append(name)

    loaded: list[str] = []
    yield {"beside": "nothing", **_every_3_ms(urgent, graph, seconds)}
    thread = threading.Thread(target=load)
    thread.start()
    found = _every_3_ms(urgent, graph, seconds)
    ended.set()
    thread.join()
    yield {"beside": "loads of a thread", "loads": len(loaded), **found}
    command = [sys.executable, __file__, "HEURISTIC", "resnet50", "encoder", str(models)]
    command += [place.library] if place.library else []
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    )
    found = _every_3_ms(urgent, graph, seconds)
    yield {"beside": "loads of a process", "had_ended": process.poll(), **found}
    process.wait(60)


def _every_3_ms(stream: Stream, graph: Executable, seconds: float) -> Mapping[str, Any]:
    taken: list[float] = []
    due = time.perf_counter()
    until_s = due + seconds
    while due < until_s:
        while time.perf_counter() < due:
            time.sleep(0)
        begun = time.perf_counter()
        graph.launch(stream)
        stream.synchronise()
        taken.append((time.perf_counter() - begun) * 1e3)
        due = max(due + 0.003, time.perf_counter())
    taken.sort()
    return {
        "p50_ms": statistics.median(taken),
        "p99_ms": taken[int(len(taken) * 0.99)],
        "max_ms": taken[-1],
        "runs": len(taken),
    }


def searches(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """What an exhaustive choice of algorithms is worth, captured."""
    for path in sorted(models.glob("*.onnx")):
        stream = place.context.stream()
        found: dict[str, Any] = {"model": path.stem}
        for search in ("HEURISTIC", "EXHAUSTIVE"):
            begun = time.perf_counter()
            session = place.session(path, stream, cudnn_conv_algo_search=search)
            run = BoundRun(place, session, stream)
            graph = run.capture().executable()
            found[f"{search}_ready_ms"] = (time.perf_counter() - begun) * 1e3
            medians = Timer(place, stream).medians(lambda made=graph: made.launch(stream))  # type: ignore[misc]  # noqa: B023
            found[search] = medians["device_ms"]
            graph.close()
            run.close()
        yield found


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
"""With the seconds that each may take, in the order of what they decide."""

_ALONE = {"capture": _captured, "kinds": _kinds}

if __name__ == "__main__":
    if sys.argv[1] in _ALONE:
        faulthandler.dump_traceback_later(25, exit=True)
        place = Place(*(sys.argv[3:] or [None]))  # type: ignore[arg-type]
        print(json.dumps(_ALONE[sys.argv[1]](place, Path(sys.argv[2])), default=float), flush=True)
    else:
        _cold_process(*sys.argv[1:4], Path(sys.argv[4]), *(sys.argv[5:] or [None]))  # type: ignore[arg-type]
    os._exit(0)  # what is left is the device's to give back
