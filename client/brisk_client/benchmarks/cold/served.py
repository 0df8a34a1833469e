"""Cold starts through real Tritons: from the repository's load call to the first answer.

Servers have an entry of Brisk with an artefact, one without, and models of the plain Python
backend that use ONNX Runtime (as it is, and prepared) and torch (weights mapped from a file). Each
server loads one of them once, so that no process has computed the model before. Brisk's runtime
runs already, and stubs are forked, as in a server with any other Brisk model in it; a
Python-backend model imports its engine with every load, since each has a process of its own.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tritonclient.grpc import InferenceServerClient

from brisk_client.benchmarks.cold.networks import SMOKE, ModelFiles, build
from brisk_client.benchmarks.engines.agreement import load_arrays
from brisk_client.benchmarks.engines.registry import (
    BRISK,
    PREPARED_MODEL,
    PREPARED_PEERS,
    UNPREPARED,
    optimised_apart,
    prepare_brisk,
)
from brisk_client.benchmarks.harness.sampling import in_rounds, median_ratio, summarise
from brisk_client.benchmarks.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    ONNXRUNTIME_PREPARED_MODEL,
    TORCH_MODEL,
    signature_of,
    write_brisk_entry,
    write_python_entry,
)
from brisk_client.benchmarks.harness.served_server import (
    WITHOUT_COMPLETION,
    benchmark_server,
    thread_variables,
)
from brisk_client.benchmarks.harness.surroundings import environment
from brisk_client.inference import InferenceClient, Transport

_RESIDENT = "resident"
_SETTLING_S = 1.0
"""Behind a server's start, in which its fork server and workers get ready."""

Times: TypeAlias = "tuple[float, float, float]"
"""Seconds to READY, to the first answer, and of the second."""


def measure_served(files: ModelFiles, threads: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each engine. Brisk has a cache directory that holds nothing of earlier runs."""
    with (
        tempfile.TemporaryDirectory(prefix="brisk-cold-served-") as folder,
        tempfile.TemporaryDirectory(prefix="brisk-cold-cache-") as cache,
        environment({"BRISK_CACHE_DIR": cache}),
    ):
        repository = Path(folder)
        entries = _write_entries(repository, files, threads)
        write_brisk_entry(repository, build(SMOKE, files.folder.parent).model, _RESIDENT)
        inputs = load_arrays(files.inputs)
        taken, _ = in_rounds(
            entries,
            rounds,
            lambda engine: _load(repository, threads, entries[engine], inputs),
            uncounted=1,  # fills the page cache with libraries and models
        )
    return [_row(files, taken, engine) for engine in entries]


def _write_entries(repository: Path, files: ModelFiles, threads: int) -> dict[str, str]:
    """Entry names by engine. Brisk's have files of their own: a shared one is a shared session.

    What Brisk prepares lies in the cache directory. Raises EngineUnavailableError where ONNX
    Runtime cannot save the model.
    """
    from brisk_client.benchmarks.engines.eager import save_weights

    prepared = str(optimised_apart(files.model, files.folder, threads) / PREPARED_MODEL)
    file = str(files.model.resolve())
    weights = str(save_weights(files.model, files.folder))
    sources: dict[str, tuple[str, dict[str, object]]] = {
        "onnxruntime": (ONNXRUNTIME_MODEL, {"file": file}),
        **{
            engine: (ONNXRUNTIME_PREPARED_MODEL, {"file": prepared, "no_prepacking": no_packing})
            for no_packing, engine in enumerate(PREPARED_PEERS)
        },
        "torch": (TORCH_MODEL, {"file": file, "weights": weights}),
    }
    entries = {engine: engine.replace(" ", "_") for engine in (BRISK, UNPREPARED, *sources)}
    for engine in (BRISK, UNPREPARED):
        write_brisk_entry(repository, files.model, entries[engine])
    prepare_brisk(repository / entries[BRISK] / "1" / "model.onnx", repository, threads)
    for engine, (source, values) in sources.items():
        signature = signature_of(files.model)
        write_python_entry(
            repository, entries[engine], signature, source, threads=threads, **values
        )
    return entries


def _load(repository: Path, threads: int, name: str, inputs: Mapping[str, np.ndarray]) -> Times:
    """Start a server, load and ask one entry."""
    variables = {**thread_variables(threads), "BRISK_ARTEFACTS": "use"}
    options = [WITHOUT_COMPLETION, "--model-control-mode=explicit", f"--load-model={_RESIDENT}"]
    with (
        benchmark_server(repository, variables, options) as server,
        contextlib.closing(InferenceServerClient(server.grpc)) as control,
        InferenceClient(server.grpc, Transport.GRPC) as client,
    ):
        time.sleep(_SETTLING_S)
        before_s = time.perf_counter()
        control.load_model(name)
        ready_s = time.perf_counter()
        client.infer(name, inputs)
        first_s = time.perf_counter()
        client.infer(name, inputs)
        second_s = time.perf_counter()
    return ready_s - before_s, first_s - before_s, second_s - first_s


def _row(files: ModelFiles, taken: Mapping[str, Sequence[Times]], engine: str) -> dict[str, Any]:
    rounds = taken[engine]
    pairs = zip(rounds, taken[BRISK], strict=True)
    first = summarise([first_s for _, first_s, _ in rounds])
    return {
        "part": "served",
        "model": files.name,
        "batch": 1,
        "engine": engine,
        "ready_ms": statistics.median(ready_s for ready_s, _, _ in rounds) * 1e3,
        "first_ms": first.median * 1e3,
        "spread_ms": first.spread * 1e3,
        "second_ms": statistics.median(second_s for _, _, second_s in rounds) * 1e3,
        "over_brisk": round(median_ratio([(theirs[1], ours[1]) for theirs, ours in pairs]), 2),
        "samples": len(rounds),
    }
