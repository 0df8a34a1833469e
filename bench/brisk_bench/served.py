"""The second part of `brisk bench warm`: models through one real Triton, engine against engine.

Each model is an entry of Brisk, two of the plain Python backend that calls ONNX Runtime (whose
idle threads sleep, or spin as by its default), one that calls torch where the network is written
in it, and one of Triton's own ONNX Runtime backend where `--peer-backends` names a folder with it.
One client asks them in turns (A B C A B C …) with one request in flight, so only one engine
computes at a time.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from brisk_bench.engines.agreement import agree_by_name
from brisk_bench.engines.case import Case, case_of
from brisk_bench.engines.model_inputs import NOTHING_GIVEN, GivenInputs
from brisk_bench.engines.registry import BASE, BRISK, SPINNING, TORCH
from brisk_bench.harness.command_line import UnusableArgumentError
from brisk_bench.harness.peer_backends import CPP
from brisk_bench.harness.report import REASON, Check, Report, check_limit
from brisk_bench.harness.sampling import (
    Burst,
    Pace,
    burst_row,
    in_rounds,
    one_line,
    pace_over,
    time_inferences,
)
from brisk_bench.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    ONNXRUNTIME_SPINNING_MODEL,
    TORCH_MODEL,
    parameter,
    place_model,
    write_config,
    write_python_entry,
)
from brisk_bench.harness.served_server import (
    FAILURES,
    WITHOUT_COMPLETION,
    benchmark_server,
    thread_variables,
)
from brisk_bench.harness.surroundings import wait_until_settled
from brisk_client.inference import InferenceClient, Transport

LABELS = ("resnet50/1", "encoder/1", "mlp/1", "digits_cnn/1")

LIMIT = 1.05
"""The most of Brisk's median time over another engine's, for each model."""

SMALL_MS, SPARE_US = 1.0, 10.0
"""If a model takes the other engine less than SMALL_MS, Brisk's time less the other's is judged,
at most SPARE_US, instead of the ratio: a frame costs some microseconds, whatever it is around."""

MEAN_LIMIT = 1.05
"""The most of the median latency over the Python backend's, geometric mean of several models."""

CLOSE = "rtol 1e-3, atol 1e-4"
"""The tolerance, as reported, within which answers are to be ONNX Runtime's."""

NOTES = (
    "through Triton: client's latency of one request at a time; onnxruntime and torch eager are "
    "models of the plain Python backend (onnxruntime: intra-op threads as given; its idle threads "
    "sleep, 'onnxruntime spinning': its default); onnxruntime backend: Triton's own, in C++",
    "through Triton, ratio to onnxruntime: as in process, over the faster of the Python "
    "backend's two in each round",
    "processor ms: user and system time of tritonserver, all stubs and Brisk's runtime, an "
    "inference; counted in ticks of 10 ms over a whole round",
)


@dataclass(frozen=True, slots=True)
class Answered:
    """The results of the engines, by engine.

    ``bursts``: one for each round.
    ``agrees``: whether its answer was right.
    """

    bursts: Mapping[str, Sequence[Burst]]
    agrees: Mapping[str, bool]


def measure(
    report: Report,
    quick: bool,
    threads: int,
    files: Mapping[str, Path],
    peer: Path | None,
    given: GivenInputs = NOTHING_GIVEN,
) -> None:
    """Add rows and checks of each of ``files``, given by label, to ``report``.

    One server at a time, one for each model. ``peer``: the folder of Triton's own backend.
    """
    effort = (4, 0.5) if quick else (10, 1.5)
    ratios = []
    for label, file in files.items():
        try:
            case = case_of(str(file), given)
        except UnusableArgumentError as error:
            report.notes.append(f"{label} is not measured through Triton: {error}")
            continue
        try:
            result = _measure_model(case, label, threads, effort, peer)
        except FAILURES as error:
            reason = one_line(str(error))
            report.rows.append({"model": f"{label} served", "engine": "none", REASON: reason})
            text = f"{label} through Triton: is measured"
            report.checks.append(Check(text, reason, "yes", False))
            continue
        report.rows += rows_of(label, result)
        report.checks += checks_of(label, result)
        ratios.append(pace_over(result.bursts[BRISK], *_python_peers(result.bursts)).ratio)
    if len(ratios) > 1:
        mean = statistics.geometric_mean(ratios)
        text = (
            f"geometric mean of {len(ratios)} models through Triton: brisk / Python backend with "
            "onnxruntime"
        )
        report.checks.append(check_limit(text, mean, "<=", MEAN_LIMIT, 3))


def _measure_model(
    case: Case, label: str, threads: int, effort: tuple[int, float], peer: Path | None
) -> Answered:
    """Measure every engine. ``effort``: rounds, seconds of each burst. Raises one of FAILURES."""
    rounds, duration_s = effort
    with tempfile.TemporaryDirectory(prefix="brisk-served-") as folder:
        entries = write_entries(Path(folder), case, label, threads, peer)
        options = [WITHOUT_COMPLETION]
        with (
            benchmark_server(Path(folder), thread_variables(threads), options, peer) as server,
            InferenceClient(server.grpc, Transport.GRPC) as client,
        ):

            def burst(engine: str) -> Burst:
                used_s = server.processor_s()
                ask = partial(client.infer, entries[engine], case.inputs)
                return Burst(time_inferences(ask, duration_s), server.processor_s() - used_s)

            client.infer(entries[BRISK], case.inputs)
            wait_until_settled(server.place, entries[BRISK], "normal")
            bursts, _ = in_rounds(entries, rounds, burst, uncounted=1)
            answers: dict[str, Mapping[str, np.ndarray]] = {
                engine: {
                    output: np.atleast_1d(array)  # the Python backend may give scalars
                    for output, array in client.infer(name, case.inputs).items()
                }
                for engine, name in entries.items()
                if engine != TORCH  # it has weights of its own
            }
    agrees = {engine: agree_by_name(each, case.expected) for engine, each in answers.items()}
    return Answered(bursts, agrees)


def write_entries(
    repository: Path, case: Case, label: str, threads: int, peer: Path | None = None
) -> dict[str, str]:
    """Write entries for all engines that have the case's model; return their names by engine.

    ``label``: the case's name in reports. All have the same configuration but for the backend; one
      instance each.
    """
    from brisk_bench.engines.eager import NETWORKS

    sources = {BASE: ONNXRUNTIME_MODEL}
    if threads > 1:  # one thread never waits for others
        sources[SPINNING] = ONNXRUNTIME_SPINNING_MODEL
    if case.file.parent.parent.name in NETWORKS:
        sources[TORCH] = TORCH_MODEL
    engines = (BRISK, *sources, *((CPP,) if peer is not None else ()))
    stem = label.replace("/", "_")
    entries = {name: f"{stem}_{name.replace(' ', '_')}" for name in engines}
    configured = {BRISK: ("brisk", "")}
    if peer is not None:
        configured[CPP] = (peer.name, parameter("intra_op_thread_count", threads))
    for engine, (backend, more) in configured.items():
        version = write_config(repository, entries[engine], case.signature, backend, more)
        place_model(case.file, version / "model.onnx")
    values = {"file": str(case.file), "weights": None, "threads": threads}
    for engine, source in sources.items():
        write_python_entry(repository, entries[engine], case.signature, source, **values)
    return entries


def rows_of(label: str, found: Answered) -> list[dict[str, Any]]:
    """Return a row for each engine.

    Their ``model`` gives them a plot apart from the rows in process of the same model.
    """
    rows = []
    for engine, bursts in found.bursts.items():
        pace = pace_over(bursts, *_python_peers(found.bursts))
        row: dict[str, Any] = {
            "model": f"{label} served",
            "engine": engine,
            "path": "Triton, gRPC",
            **burst_row(bursts),
            "ratio_to_onnxruntime": pace.ratio,
            "more_us": pace.more_us,
        }
        if engine in found.agrees:
            row["agrees"] = found.agrees[engine]
        rows.append(row)
    return rows


def checks_of(label: str, found: Answered) -> list[Check]:
    """Check Brisk's latency against each of its peers, and its answer."""
    named = f"{label} through Triton: brisk"
    peers = {"Python backend with onnxruntime": _python_peers(found.bursts)}
    if CPP in found.bursts:
        peers["Triton's onnxruntime backend"] = [found.bursts[CPP]]
    checks = []
    for peer, bases in peers.items():
        pace = pace_over(found.bursts[BRISK], *bases)
        checks.append(pace_check(named, peer, pace))
    close = found.agrees[BRISK]
    checks.append(Check(f"{named}'s answer agrees with onnxruntime's", close, CLOSE, close))
    return checks


def pace_check(ours: str, theirs: str, pace: Pace) -> Check:
    """Check a model's time against another engine's; ``ours`` and ``theirs`` name the two."""
    if pace.theirs_ms < SMALL_MS:
        return check_limit(f"{ours} - {theirs}, us", pace.more_us, "<=", SPARE_US, 1)
    return check_limit(f"{ours} / {theirs}", pace.ratio, "<=", LIMIT, 3)


def _python_peers(bursts: Mapping[str, Sequence[Burst]]) -> list[Sequence[Burst]]:
    return [bursts[name] for name in (BASE, SPINNING) if name in bursts]
