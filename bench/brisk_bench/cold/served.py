"""Cold starts through real Tritons: from the repository's load call to the first answers.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tritonclient.grpc import InferenceServerClient

from brisk.protocol.runtime_paths import Role
from brisk.telemetry.observer import Observer
from brisk_bench.cold.served_parts import (
    Parts,
    begin_recording,
    end_recording,
    noting,
    part_columns,
    parts_of_brisk,
    parts_of_python,
    read_stamps,
)
from brisk_bench.engines.agreement import load_arrays
from brisk_bench.engines.networks import SMOKE, ModelFiles, build
from brisk_bench.engines.registry import (
    BRISK,
    PREPARED_MODEL,
    PREPARED_PEERS,
    UNPREPARED,
    optimised_apart,
    prepare_brisk,
)
from brisk_bench.harness.sampling import in_rounds, median_ratio, summarise
from brisk_bench.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    ONNXRUNTIME_PREPARED_MODEL,
    TORCH_MODEL,
    signature_of,
    write_brisk_entry,
    write_python_entry,
)
from brisk_bench.harness.served_server import (
    WITHOUT_COMPLETION,
    BenchmarkServer,
    benchmark_server,
    thread_variables,
)
from brisk_bench.harness.surroundings import environment
from brisk_client.inference import InferenceClient, Transport

_OURS = (BRISK, UNPREPARED)
_RESIDENT = "resident"
_SETTLING_S = 4.0
"""The pause after a server's start, in which its fork server and workers get ready."""

LATER = (2, 5, 10, 20)
"""Answers of a closed loop, counted from the load, whose times are reported in addition to the
first's."""

_STAMPS = "stamps.json"
"""The file of a Python model's time stamps, in its entry's folder."""


@dataclass(frozen=True, slots=True)
class _Times:
    """Times of CLOCK_MONOTONIC: the load call, its return, and each answer."""

    begin_ns: int
    ready_ns: int
    answers_ns: tuple[int, ...]

    @property
    def first_ns(self) -> int:
        return self.answers_ns[0]

    def until_s(self, answer: int) -> float:
        """Return the seconds from the load call to an answer; the first answer is 1."""
        return (self.answers_ns[answer - 1] - self.begin_ns) / 1e9


_Start: TypeAlias = "tuple[_Times, Parts]"


def measure_served(files: ModelFiles, threads: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each engine. Brisk's cache directory holds nothing of earlier runs."""
    with (
        tempfile.TemporaryDirectory(prefix="brisk-cold-served-") as folder,
        tempfile.TemporaryDirectory(prefix="brisk-cold-cache-") as cache,
        environment({"BRISK_CACHE_DIR": cache}),
    ):
        repository = Path(folder)
        entries = _write_entries(repository, files, threads)
        write_brisk_entry(repository, build(SMOKE, files.folder.parent).model, _RESIDENT)
        inputs = load_arrays(files.inputs)
        starts, _ = in_rounds(
            entries,
            rounds,
            lambda engine: _load(repository, threads, entries[engine], engine, inputs),
            uncounted=1,  # fills the page cache with libraries and models
        )
    return [_row(files, starts, engine) for engine in entries]


def _write_entries(repository: Path, files: ModelFiles, threads: int) -> dict[str, str]:
    """Write the entries; return their names by engine.

    Brisk's entries have files of their own: a shared file is a shared session. What Brisk prepares
    lies in the cache directory. Raises EngineUnavailableError if ONNX Runtime cannot save the
    model.
    """
    from brisk_bench.engines.eager import save_weights

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
    entries = {engine: engine.replace(" ", "_") for engine in (*_OURS, *sources)}
    for engine in _OURS:
        write_brisk_entry(repository, files.model, entries[engine])
    prepare_brisk(repository / entries[BRISK] / "1" / "model.onnx", repository, threads)
    for engine, (source, values) in sources.items():
        name, signature = entries[engine], signature_of(files.model)
        values |= {"threads": threads, "stamps": str(repository / name / _STAMPS)}
        write_python_entry(repository, name, signature, noting(source), **values)
    return entries


def _load(
    repository: Path, threads: int, name: str, engine: str, inputs: Mapping[str, np.ndarray]
) -> _Start:
    """Start a server, load one entry and ask it. Raises UnknownPartsError.

    A worker of Brisk is observed meanwhile: some ten spans, a microsecond each.
    """
    if engine in _OURS:
        with (
            _resident_server(repository, threads, uses_prepared=engine == BRISK) as server,
            Observer(server.place, Role.FOREGROUND) as observer,
        ):
            begin_recording(observer)
            start = _time(server, name, inputs)
            spans, origin = end_recording(observer, name)
        return start, parts_of_brisk(spans, name, origin, start.begin_ns, start.first_ns)
    stamps = repository / name / _STAMPS
    stamps.unlink(missing_ok=True)
    with _resident_server(repository, threads) as server:
        start = _time(server, name, inputs)
    # After the server's end: the model writes them when it is unloaded.
    return start, parts_of_python(read_stamps(stamps), start.begin_ns, start.first_ns)


@contextlib.contextmanager
def _resident_server(
    repository: Path, threads: int, *, uses_prepared: bool = True
) -> Iterator[BenchmarkServer]:
    """Run a server that already has another entry of Brisk.

    ``uses_prepared`` False turns prepared forms off: both entries of a model find them.
    """
    variables = {**thread_variables(threads), "BRISK_ARTEFACTS": "use" if uses_prepared else "off"}
    options = [WITHOUT_COMPLETION, "--model-control-mode=explicit", f"--load-model={_RESIDENT}"]
    with benchmark_server(repository, variables, options) as server:
        yield server


def _time(server: BenchmarkServer, name: str, inputs: Mapping[str, np.ndarray]) -> _Times:
    with (
        contextlib.closing(InferenceServerClient(server.grpc)) as control,
        InferenceClient(server.grpc, Transport.GRPC) as client,
    ):
        time.sleep(_SETTLING_S)
        begin_ns = time.monotonic_ns()
        control.load_model(name)
        ready_ns = time.monotonic_ns()
        answers_ns = []
        for _ in range(LATER[-1]):
            client.infer(name, inputs)
            answers_ns.append(time.monotonic_ns())
        return _Times(begin_ns, ready_ns, tuple(answers_ns))


def _row(files: ModelFiles, taken: Mapping[str, Sequence[_Start]], engine: str) -> dict[str, Any]:
    rounds = [times for times, _ in taken[engine]]
    ours = [times for times, _ in taken[BRISK]]
    first = summarise([times.until_s(1) for times in rounds])
    pairs = [(peer.until_s(1), own.until_s(1)) for peer, own in zip(rounds, ours, strict=True)]
    return {
        "part": "served",
        "model": files.name,
        "batch": 1,
        "engine": engine,
        "ready_ms": statistics.median(each.ready_ns - each.begin_ns for each in rounds) / 1e6,
        "first_ms": first.median * 1e3,
        "spread_ms": first.spread * 1e3,
        **part_columns([parts for _, parts in taken[engine]]),
        "second_ms": statistics.median(each.until_s(2) - each.until_s(1) for each in rounds) * 1e3,
        **{
            f"answer_{answer}_ms": statistics.median(each.until_s(answer) for each in rounds) * 1e3
            for answer in LATER
        },
        "over_brisk": median_ratio(pairs),
        "samples": len(rounds),
    }
