"""The probe's parts on capture: what of a model can be captured, and what that gains."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
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
    difference,
    import_onnxruntime,
    in_process,
    inputs_of,
    launch_all,
    node_times_us,
    same,
    told,
)

from brisk.gpu.driver import CudaError
from brisk.gpu.graphs import Graph, chunks


def capture(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """Try to capture each model, and time a run plain, by ONNX Runtime's own graph, by ours, and
    by ours in chunks. It decides go or no go.

    Each model is measured in a process of its own.
    """
    for path in sorted(models.glob("*.onnx")):
        yield {"model": path.stem, **in_process(place, __file__, "capture", str(path))}


def workspaces_of(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """Yield what cuBLAS does in a capture, by the setting of its memory."""
    settings: dict[str, dict[str, str]] = {
        "nothing": {"BRISK_PROBE_WORKSPACE": ""},
        "small ones": {"BRISK_PROBE_WORKSPACE": "", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        "its own, by us": {},
    }
    for name, setting in settings.items():
        yield {
            "told": name,
            **in_process(place, __file__, "kinds", str(models / "resnet50.onnx"), setting),
        }


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
        found["not_captured"] = told(error)
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

    session = import_onnxruntime().InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs_of(session, 1)), strict=True))


def _own_graph(place: Place, path: Path) -> Mapping[str, Any]:
    """Time ONNX Runtime's own graph: captured by its second run, launched by later ones."""
    stream = place.context.stream()
    try:
        session = place.session(path, stream, enable_cuda_graph="1")
        run = BoundRun(place, session, stream)
        found = Timer(place, stream).medians(run.issue)
        run.close()
    except Exception as error:  # noqa: BLE001  # it is the answer
        return {"error": told(error)}
    return found


def chunk_costs(place: Place, models: Path) -> Mapping[str, Any]:
    """Measure the cost of chunks of some lengths: to make, to launch, in memory.

    Also shows whether a node keeps the priority of the stream that it was captured on.
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
    """Time rows 1, 2, 4, 8 in rotation: what planning convolutions anew costs, and graphs."""
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


def searches(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the gain of an exhaustive choice of algorithms, captured."""
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


_ALONE = {"capture": _captured, "kinds": _kinds}

if __name__ == "__main__":
    faulthandler.dump_traceback_later(25, exit=True)
    found = _ALONE[sys.argv[1]](Place(*(sys.argv[3:] or [None])), Path(sys.argv[2]))  # type: ignore[arg-type]
    print(json.dumps(found, default=float), flush=True)
    os._exit(0)  # what is left is the device's to give back
