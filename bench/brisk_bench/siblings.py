"""`brisk bench siblings`: how soon the next version of a model answers beside a warm first one.

A real Triton serves a model; once that is warm, a second one is loaded whose weights all differ
by some 0.1 %, as a fine-tune's do: in sessions of their structure (``shared``), in sessions of its
own (``own``: `brisk_share: "off"`), and on a server without the first one (``alone``), all from
prepared forms; and without a form of its own: by that of the first one (``bare``), and by nothing
(``bare own``). Sides take turns; servers rest meanwhile.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from tritonclient.grpc import InferenceServerClient

from brisk.artefacts import room
from brisk.segments.prepared.form import find_prepared
from brisk_bench.density.memory import memory_of
from brisk_bench.engines.agreement import agree_by_name
from brisk_bench.engines.case import Case, case_of
from brisk_bench.engines.process import prepare_apart
from brisk_bench.harness.command_line import bars, benchmark_parser, run_command
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Check, Report, check_limit
from brisk_bench.harness.sampling import in_rounds
from brisk_bench.harness.served_entries import place_model, write_brisk_entry
from brisk_bench.harness.served_server import (
    WITHOUT_COMPLETION,
    BenchmarkServer,
    benchmark_server,
    unload_model,
)
from brisk_bench.harness.surroundings import wait_until_settled
from brisk_client.inference import InferenceClient, Transport

MODELS = ("resnet50", "encoder")
FIRST, NEXT = "first", "next"
SHARED, OWN, ALONE, BARE, BARE_OWN = "shared", "own", "alone", "bare", "bare own"
SIDES = (SHARED, OWN, ALONE, BARE, BARE_OWN)
UNPREPARED = (BARE, BARE_OWN)

CHANGE = 1e-3
"""Standard deviation from 1 of the factors that weights are multiplied with."""

WARM_RUNS = 20

_LET_GO_S = 60.0
"""The time within which an unloaded model's form is no longer mapped."""

AIM, WORST = 1.1, 1.2
"""The most of the first answer over the model's own warm pace: median over models, and each."""

BARE_AIM = 1.5
"""The most of the first answer over the warm pace of a model that was not prepared."""

NOTES = (
    "load: the load call; first: the first request after it; second, third: those that follow at "
    "once; warm: median of later ones, when its sessions change no more. Medians over rounds",
    "mb: private dirty memory that the runtime has more once the second model is warm",
)


@dataclass(slots=True)
class Starts:
    """The starts of one side: a value for each round, in seconds and bytes."""

    load_s: list[float] = field(default_factory=list)
    answers_s: list[list[float]] = field(default_factory=list)
    warm_s: list[float] = field(default_factory=list)
    more_bytes: list[int] = field(default_factory=list)
    wrong: int = 0

    def row(self) -> dict[str, float]:
        ratios = [first[0] / warm for first, warm in zip(self.answers_s, self.warm_s, strict=True)]
        places = zip(*self.answers_s, strict=True)
        names = ("first_ms", "second_ms", "third_ms")
        return {
            "load_ms": 1e3 * statistics.median(self.load_s),
            **{
                name: 1e3 * statistics.median(values)
                for name, values in zip(names, places, strict=True)
            },
            "warm_ms": 1e3 * statistics.median(self.warm_s),
            "first_over_warm": statistics.median(ratios),
            "mb": statistics.median(self.more_bytes) / 1e6,
        }


def run(quick: bool = False, models: Sequence[str] = (), rounds: int = 0) -> Report:
    """Measure the starts. ``models``: samples or ONNX files, none: MODELS. ``rounds``: 0: default.

    Raises UnusableArgumentError for a model that does not exist.
    """
    cases = [case_of(name) for name in models or MODELS[: 1 if quick else None]]
    packages = ("onnxruntime", "tritonclient", "numpy")
    report = new_report("siblings", packages, NOTES, threads="all")
    for case in cases:
        for side, starts in _measure(case, rounds or (3 if quick else 9)).items():
            report.rows.append({"model": case.name, "side": side, **starts.row()})
            if starts.wrong:
                text = f"{case.name}, {side}: wrong answers"
                report.checks.append(Check(text, str(starts.wrong), "0", False))
    add_checks(report)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("siblings", __doc__, "one model, three rounds")
    parser.add_argument(
        "--model", dest="models", action="append", default=[], metavar="NAME|FILE",
        help="a sample or an ONNX file; any number",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=0)
    return run_command(parser, arguments, run, bars("first_over_warm", "model", "side"))


def add_checks(report: Report) -> None:
    ratios = {row["model"]: row["first_over_warm"] for row in report.rows if row["side"] == SHARED}
    for model, ratio in ratios.items():
        text = f"{model}: first answer beside a warm sibling over warm"
        report.checks.append(check_limit(text, ratio, "<=", WORST, digits=2))
    if ratios:
        text = f"{len(ratios)} models: first answer beside a warm sibling over warm, median"
        median = statistics.median(ratios.values())
        report.checks.append(check_limit(text, median, "<=", AIM, digits=2))
    for row in report.rows:
        if row["side"] == BARE:
            text = f"{row['model']}: first answer of an unprepared sibling over warm"
            value = row["first_over_warm"]
            report.checks.append(check_limit(text, value, "<=", BARE_AIM, digits=2))


def write_sibling(source: Path, target: Path, seed: int = 7) -> None:
    """Write the model of ``source`` with other weights: each float of several elements changed."""
    model = onnx.load(source)
    rng = np.random.default_rng(seed)

    def change(tensor: TensorProto) -> None:
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind == "f" and array.size > 1:
            factors = 1 + CHANGE * rng.standard_normal(array.shape)
            changed = (array * factors).astype(array.dtype)
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))

    for tensor in model.graph.initializer:
        change(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                change(attribute.t)
    onnx.save(model, target)


def _measure(case: Case, rounds: int) -> Mapping[str, Starts]:
    starts = {side: Starts() for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="brisk-siblings-") as folder:
        place = Path(folder)
        files = {FIRST: place / "first.onnx", NEXT: place / "next.onnx"}
        place_model(case.file, files[FIRST])
        write_sibling(case.file, files[NEXT])
        next_case = case_of(str(files[NEXT]))  # its answers are the second model's
        with contextlib.ExitStack() as stack:
            servers = {
                side: stack.enter_context(_served(place / side, side, files, next_case))
                for side in SIDES
            }

            def start(side: str) -> None:
                _start(servers[side], next_case, starts[side])
                if side in UNPREPARED:
                    _remove_form(place / side)

            in_rounds(SIDES, rounds, start)
    return starts


def _remove_form(repository: Path) -> None:
    """Remove the second model's form, which the server has made meanwhile.

    Raises TimeoutError if it stays in use.
    """
    cache = {"BRISK_CACHE_DIR": str(_cache(repository))}
    form = find_prepared(repository / NEXT / "1" / "model.onnx", (), cache)
    until_s = time.monotonic() + _LET_GO_S
    while form is not None and not room.remove(form):
        if time.monotonic() > until_s:
            raise TimeoutError(f"{form} is still in use")
        time.sleep(0.1)


def _cache(repository: Path) -> Path:
    """Return a server's own cache, where no form of another's model is found by its content."""
    return repository.with_name(f"{repository.name} cache")


@contextlib.contextmanager
def _served(
    repository: Path, side: str, files: Mapping[str, Path], case: Case
) -> Iterator[BenchmarkServer]:
    parameters = {"brisk_share": "off"} if side in (OWN, BARE_OWN) else {}
    for name, file in files.items():
        write_brisk_entry(repository, file, name, parameters)
        if name == FIRST or side not in UNPREPARED:
            prepare_apart(repository / name / "1" / "model.onnx", _cache(repository))
    options = [WITHOUT_COMPLETION, "--model-control-mode=explicit"]
    environment = {"BRISK_CACHE_DIR": str(_cache(repository))}
    with benchmark_server(repository, environment, options) as server:
        if side != ALONE:
            _load(server, FIRST)
            _ask(server, FIRST, case, WARM_RUNS)
            wait_until_settled(server.place, FIRST, "normal")
            _ask(server, FIRST, case, WARM_RUNS)
        yield server


def _start(server: BenchmarkServer, case: Case, into: Starts) -> None:
    before = _own_bytes(server)
    begun_s = time.perf_counter()
    _load(server, NEXT)
    into.load_s.append(time.perf_counter() - begun_s)
    into.answers_s.append(_ask(server, NEXT, case, 3, into))
    wait_until_settled(server.place, NEXT, "normal")
    _ask(server, NEXT, case, 5)
    into.warm_s.append(statistics.median(_ask(server, NEXT, case, WARM_RUNS, into)))
    into.more_bytes.append(_own_bytes(server) - before)
    unload_model(InferenceServerClient(server.grpc), NEXT)
    time.sleep(0.5)  # until its sessions are let go of


def _load(server: BenchmarkServer, name: str) -> None:
    InferenceServerClient(server.grpc).load_model(name)


def _ask(
    server: BenchmarkServer,
    name: str,
    case: Case,
    count: int,
    into: Starts | None = None,
) -> list[float]:
    """Send so many requests, one after the other; return what each took, in seconds."""
    took_s = []
    with InferenceClient(server.grpc, Transport.GRPC) as client:
        for _ in range(count):
            begun_s = time.perf_counter()
            outputs = client.infer(name, case.inputs)
            took_s.append(time.perf_counter() - begun_s)
            if into is not None:
                into.wrong += not agree_by_name(outputs, case.expected)
    return took_s


def _own_bytes(server: BenchmarkServer) -> int:
    pids = [each.pid for each in server.processes() if each.kind == "runtime"]
    return sum(each.own_bytes for each in memory_of(pids))
