"""The probe's parts on waiting: urgent work concurrent with other work, and with loads."""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from place import (
    CHUNK_US,
    BoundRun,
    Place,
    Timer,
    event_of,
    launch_all,
    node_times_us,
    told,
)

from brisk.gpu.driver import Event, Stream
from brisk.gpu.graphs import Executable, chunks

COLD = Path(__file__).with_name("parts.py")


def preemption(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """Time an urgent kernel's wait for its first block next to ResNet-50 as best effort.

    A row for each means: priorities, the bound on what is outstanding, green contexts.
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
        yield {"setting": "green contexts", "error": told(error)}
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
    """Return µs from a kernel's launch to what it writes, alone and with repeated ``work``.

    ``bound``: launches that may be outstanding; None: ten times all of ``work``.
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
    """Issue work for some time, at most ``bound`` at once; return while it is outstanding."""
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
    """Time an urgent model's run concurrent with one that is not: in chunks, of which none is
    launched while the urgent one runs, or some are; and all of it at once."""
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
    """Return ms of urgent runs, one each 3 ms, and the other's runs a second."""
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
    """Time an urgent model's run while another thread, or another process, opens sessions, runs
    and captures. It decides where a load may run."""
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
    command = [sys.executable, str(COLD), "HEURISTIC", "resnet50", "encoder", str(models)]
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


def _green_streams(place: Place) -> tuple[Stream, Stream]:
    """Return streams on a quarter of the multiprocessors and on the others.

    See the CUDA programming guide, 4.6.
    """
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
