"""`brisk bench streamed`: how soon a host answers whose model lies on a web server.

Two hosts, network namespaces of this machine, with a shaped link each: a web server of published
models, and a Triton with Brisk whose cache is empty. Sides: an entry with `model.remote`, whose
prepared form was published, too (``streamed``), or its weights alone (``weights``); and what one
does without: the model is downloaded into the repository, then loaded (``downloaded``). Sides take
turns. The links are measured first; where they do not carry what they should, nothing else is.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from brisk.copies.manifest import NAME, write_manifest
from brisk.publishing.describing import cuts_of, describe
from brisk.publishing.writing import publish, remote_text
from brisk.segments.prepared.preparation import is_prepared, prepare
from brisk_client.benchmarks.harness.command_line import bars, benchmark_parser, run_command
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.benchmarks.start.case import Case, case_of
from brisk_client.fleet.links import Links
from brisk_client.fleet.namespaces import NamespaceHost, rack
from brisk_client.fleet.programs import HostProgram
from brisk_client.report import Report, check_limit

MODELS = ("resnet50", "encoder", "resnet18_ort")
STREAMED, WEIGHTS, DOWNLOADED = "streamed", "weights", "downloaded"
SIDES = (STREAMED, WEIGHTS, DOWNLOADED)
RATE_MBIT_S = 500.0

SLOW_MBIT_S, LEAST_SOONER = 200.0, 30.0
"""At this rate, how many times as soon a start is from what is here (Flashpoint: 45.8)."""

MOST_LATE = 0.25
"""Of a warm answer: what the first answer may be later than the last byte."""

LEAST_GAIN = {"resnet50": 1.15}
"""Over downloading first; 1 for others."""

_START_S = 300.0

NOTES = (
    "last: the last byte that the start needs is here; first: the first answer; both from when "
    "the load, or the download, is asked for. late: first less last, over a warm answer. Medians "
    "over rounds; again: first, when it is unloaded and loaded once more from what is here",
    "two hosts share this machine's processors; no latency of a network, no loss",
)


def run(
    quick: bool = False,
    models: Sequence[str] = (),
    rounds: int = 0,
    rate: float = RATE_MBIT_S,
) -> Report:
    """Measure. ``models``: samples or ONNX files, none: MODELS. ``rate``: of each link, Mbit/s.

    Raises UnusableArgumentError for what is not there, NoNamespacesError where hosts cannot be
    made, UnfitLinksError where links do not carry what they should.
    """
    cases = [case_of(name) for name in models or MODELS[: 1 if quick else None]]
    packages = ("onnxruntime", "tritonclient", "aiohttp", "numpy")
    report = new_report("streamed", packages, NOTES, threads="all")
    with rack(["registry", "host"]) as machines:
        links = Links(machines)
        links.shape_all(rate)
        for carried in links.check():
            report.notes.append(str(carried))
        for case in cases:
            found = _measure(case, machines["registry"], machines["host"], rounds or 5)
            report.rows.extend(_rows(case, found, rate))
    add_checks(report)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("streamed", __doc__, "one model")
    parser.add_argument(
        "--model", dest="models", action="append", default=[], metavar="NAME|FILE",
        help="a sample or an ONNX file; any number",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--rate", type=float, default=RATE_MBIT_S, help="of each link, Mbit/s")
    return run_command(parser, arguments, run, bars("first_s", "model", "side"))


def add_checks(report: Report) -> None:
    """Every check from the rows."""
    for model in dict.fromkeys(row["model"] for row in report.rows):
        rows = {row["side"]: row for row in report.rows if row["model"] == model}
        text = f"{model}: first answer behind the last byte, over a warm answer"
        report.checks.append(check_limit(text, rows[STREAMED]["late"], "<=", MOST_LATE, digits=2))
        text = f"{model}: downloading first, over this"
        gain = rows[DOWNLOADED]["first_s"] / rows[STREAMED]["first_s"]
        report.checks.append(check_limit(text, gain, ">=", LEAST_GAIN.get(model, 1.0), digits=3))
        if rows[STREAMED]["mbit_s"] == SLOW_MBIT_S:
            text = f"{model}: from the web server over from here"
            sooner = rows[STREAMED]["first_s"] / rows[STREAMED]["again_s"]
            report.checks.append(check_limit(text, sooner, ">=", LEAST_SOONER, digits=1))


def _rows(
    case: Case, found: Mapping[str, Sequence[Mapping[str, float]]], rate: float
) -> Iterator[dict[str, object]]:
    for side, starts in found.items():
        row: dict[str, object] = {"model": case.name, "side": side, "mbit_s": rate}
        for name in ("ready_s", "last_s", "first_s", "warm_s", "again_s"):
            row[name] = statistics.median(start[name] for start in starts)
        late = [(start["first_s"] - start["last_s"]) / start["warm_s"] for start in starts]
        row["late"] = statistics.median(late)
        firsts = [start["first_s"] for start in starts]
        row["spread_s"] = max(firsts) - min(firsts)
        yield row


def _measure(
    case: Case, registry: NamespaceHost, host: NamespaceHost, rounds: int
) -> Mapping[str, Sequence[Mapping[str, float]]]:
    found: dict[str, list[Mapping[str, float]]] = {side: [] for side in SIDES}
    with (
        tempfile.TemporaryDirectory(prefix="brisk-registry-") as name,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        manifests = _publish(case, folder)
        serve = [sys.executable, "-m", "brisk_client.fleet.file_server", str(folder)]
        server = stack.enter_context(HostProgram(registry, serve))
        place = f"http://{registry.address}:{server.hear(_START_S)['port']}"
        told: dict[str, dict[str, object]] = {
            side: {"remote": remote_text(f"{place}/{side}", manifests[side])}
            for side in (STREAMED, WEIGHTS)
        }
        told[DOWNLOADED] = {"url": f"{place}/{WEIGHTS}/model.onnx"}
        program = "brisk_client.benchmarks.streamed.host"
        command = [sys.executable, "-m", program, str(case.file)]
        starting = stack.enter_context(HostProgram(host, command, dict(os.environ)))
        for number in range(rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                starting.say(**told[side])
                found[side].append(starting.hear(_START_S))
    return found


def _publish(case: Case, folder: Path) -> Mapping[str, bytes]:
    """The manifests of both ways, by side."""
    threads = len(os.sched_getaffinity(0))
    cuts = cuts_of(case.file)
    if not is_prepared(case.file, threads, cuts):
        prepare(case.file, threads, cuts)
    manifests = {}
    for side, with_form in ((STREAMED, True), (WEIGHTS, False)):
        described = describe(case.file, threads, with_form=with_form)
        publish(described, str(folder / side))
        manifests[side] = write_manifest(described.manifest)
        assert (folder / side / NAME).read_bytes() == manifests[side]
    return manifests
