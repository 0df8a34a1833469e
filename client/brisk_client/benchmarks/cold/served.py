"""Cold starts through real Tritons: from the repository's load call to the first answer.

Servers have an entry of Brisk with an artefact, one without, and models of the plain Python
backend that use ONNX Runtime (as it is, and prepared) and torch (weights mapped from a file). Each
server loads a model once per engine and Brisk only one of its two entries, so that no process has
computed the model before. Brisk's runtime runs already, and
stubs are forked, as in a server with any other Brisk model in it; a Python-backend model imports
its engine with every load, since each has a process of its own.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tritonclient.grpc import InferenceServerClient

from brisk_client.benchmarks.cold.machine.surroundings import own_cache
from brisk_client.benchmarks.cold.models import SMOKE, ModelFiles, build
from brisk_client.benchmarks.cold.served_entries import BRISK, UNPREPARED, write_cold_entries
from brisk_client.benchmarks.engines.onnxruntime_prepared import VARIABLES
from brisk_client.benchmarks.harness.sampling import median_ratio, summarise
from brisk_client.benchmarks.harness.served_entries import write_brisk_entry
from brisk_client.benchmarks.harness.served_server import BenchmarkServer, benchmark_server
from brisk_client.inference import InferenceClient, Transport
from brisk_client.report import Report

_RESIDENT = "resident"
_UNLOAD_TIMEOUT_S = 60.0
_SETTLING_S = 1.0
"""Behind a server's start, in which its fork server and workers get ready."""

Times: TypeAlias = "tuple[float, float, float]"
"""Seconds to READY, to the first answer, and of the second."""


def measure_served(
    report: Report, files: ModelFiles, threads: int, rounds: int, kept: Path
) -> None:
    """Add a row for each engine. ``kept``: the folder of built models."""
    with tempfile.TemporaryDirectory(prefix="brisk-cold-served-") as folder, own_cache():
        repository = Path(folder)
        entries = write_cold_entries(repository, files, threads)
        write_brisk_entry(repository, build(SMOKE, 1, kept).model, _RESIDENT)
        with np.load(files.inputs) as arrays:
            inputs = {name: arrays[name] for name in arrays.files}
        taken: dict[str, list[Times]] = {engine: [] for engine in entries}
        for turn in range(rounds + 1):
            for group in _groups(entries, turn):
                found = _load_each(repository, threads, group, inputs)
                for engine, times in found.items():
                    if turn:  # the first round fills the page cache with libraries and models
                        taken[engine].append(times)
    _add(report, files, taken)


def _groups(entries: Mapping[str, str], turn: int) -> list[dict[str, str]]:
    """Entry names by engine for one server each, in an order drawn by the round.

    Brisk's two are apart; a Python-backend model has a process of its own in any server.
    """
    order = random.Random(turn).sample(list(entries), len(entries))
    return [
        {engine: entries[engine] for engine in order if (engine == UNPREPARED) == is_apart}
        for is_apart in (False, True)
    ]


def _load_each(
    repository: Path, threads: int, entries: Mapping[str, str], inputs: Mapping[str, np.ndarray]
) -> dict[str, Times]:
    """Start a server, load and ask each entry once, in order."""
    variables = {
        "BRISK_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "BRISK_ARTEFACTS": "use",
        **VARIABLES,
    }
    options = ["--disable-auto-complete-config", "--model-control-mode=explicit"]
    options.append(f"--load-model={_RESIDENT}")
    found = {}
    with benchmark_server(repository, variables, options) as server:
        time.sleep(_SETTLING_S)
        control = InferenceServerClient(server.grpc)
        with InferenceClient(server.grpc, Transport.GRPC) as client:
            for engine, name in entries.items():
                found[engine] = _load(control, client, name, inputs)
                control.unload_model(name)
                _wait_unloaded(server, control, name)
        control.close()
    return found


def _load(
    control: Any, client: InferenceClient, name: str, inputs: Mapping[str, np.ndarray]
) -> Times:
    before_s = time.perf_counter()
    control.load_model(name)
    ready_s = time.perf_counter()
    client.infer(name, inputs)
    first_s = time.perf_counter()
    client.infer(name, inputs)
    second_s = time.perf_counter()
    return ready_s - before_s, first_s - before_s, second_s - first_s


def _wait_unloaded(server: BenchmarkServer, control: Any, name: str) -> None:
    """Until the model and its stub are gone, whose end would be paid for by the next start.

    Triton answers an unload before that. Raises TimeoutError.
    """
    deadline_s = time.monotonic() + _UNLOAD_TIMEOUT_S
    while server.has_stub_of(name) or any(
        entry.name == name and entry.state != "UNAVAILABLE"
        for entry in control.get_model_repository_index().models
    ):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"'{name}' was not unloaded in {_UNLOAD_TIMEOUT_S:g} s")
        time.sleep(0.02)


def _add(report: Report, files: ModelFiles, taken: Mapping[str, Sequence[Times]]) -> None:
    for engine, rounds in taken.items():
        pairs = zip(rounds, taken[BRISK], strict=True)
        over = median_ratio([(theirs[1], ours[1]) for theirs, ours in pairs])
        first = summarise([first_s for _, first_s, _ in rounds])
        report.rows.append(
            {
                "part": "served",
                "model": files.name,
                "batch": files.batch,
                "engine": engine,
                "ready_ms": statistics.median(ready_s for ready_s, _, _ in rounds) * 1e3,
                "first_ms": first.median * 1e3,
                "spread_ms": first.spread * 1e3,
                "second_ms": statistics.median(second_s for _, _, second_s in rounds) * 1e3,
                "over_brisk": round(over, 2),
                "samples": len(rounds),
            }
        )
