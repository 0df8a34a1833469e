"""`brisk bench streamed`: how soon a host answers whose model lies on a web server.

Hosts are those of `brisk bench sourcing`, with a shaped link each: a web server of published
models, and a Triton with Brisk whose cache is empty. Sides: an entry with `model.remote`, whose
prepared form was published, too (``streamed``), or, where it is asked for, its weights alone
(``weights``); and what one does without: the model is downloaded into the repository, then loaded
(``downloaded``). Sides take turns. The links are measured first; where they do not carry what they
should, nothing else is.
"""

from __future__ import annotations

import dataclasses
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from brisk.errors import BriskError
from brisk_bench.engines.case import Case, case_of, made_case
from brisk_bench.engines.model_inputs import add_models_option, labelled, models_in
from brisk_bench.harness.command_line import (
    UnusableArgumentError,
    bars,
    benchmark_parser,
    check_known,
    listed,
    run_command,
)
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import REASON, Check, Report, check_limit
from brisk_bench.harness.sampling import in_rounds, one_line
from brisk_bench.harness.served_entries import place_model
from brisk_bench.sourcing.scene import HOST, PEER, REGISTRY, Scene, scene, told

MODELS = ("resnet50", "encoder", "vgg16")
STREAMED, WEIGHTS, DOWNLOADED = "streamed", "weights", "downloaded"
SIDES = (STREAMED, DOWNLOADED)
ALL_SIDES = (STREAMED, WEIGHTS, DOWNLOADED)
RATE_MBIT_S = 500.0

SLOW_MBIT_S, LEAST_SOONER = 200.0, 30.0
"""A rate, and the least time of a start at it over that of one from what is on the host
(Flashpoint: 45.8)."""

MOST_LATE = 0.25
"""The most of the first answer's delay after the last byte, over a warm answer."""

LEAST_GAIN = {"resnet50": 1.15}
"""The least time of downloading first over that of streaming, by model; 1 for others."""

_PUBLISHED = "model"
"""The folder of a model at the web server, until the next one is measured."""

NOTES = (
    "last: the last byte of what the start takes is here, a form or the weights; first: the first "
    "answer; both from when the load, or the download, is asked for. late: first less last, over "
    "a warm answer; below 0 where the answer did not need the last bytes. Medians over rounds; "
    "again: first, when it is unloaded and loaded once more from what is here",
    "hosts share this machine's processors; no latency of a network, no loss",
)


def run(
    quick: bool = False,
    model: Sequence[str] = (),
    models: Sequence[Path] = (),
    sides: Sequence[str] = SIDES,
    rounds: int = 0,
    rate: float = RATE_MBIT_S,
) -> Report:
    """Measure ``model``, samples, networks of ``brisk bench cold`` or ONNX files, and all files in
    the folders ``models``; MODELS if neither names any. ``rate``: of each link, Mbit/s.

    A model that cannot be measured has a row that says why, and a check that does not hold. Raises
    UnusableArgumentError for what does not exist, NoNamespacesError if hosts cannot be made,
    UnfitLinksError if links do not carry what they should.
    """
    check_known("side", sides, ALL_SIDES)
    files = labelled(models_in(models))
    named = model or (() if files else MODELS[: 1 if quick else None])
    packages = ("onnxruntime", "tritonclient", "aiohttp", "numpy")
    report = new_report("streamed", packages, NOTES, threads="all")
    with scene() as hosts:
        cases = [made_case(name, hosts.scratch) for name in named]
        report.notes.extend(hosts.shape(dict.fromkeys((REGISTRY, HOST, PEER), rate)))

        def measure(case: Case) -> None:
            try:
                starts = _starts(hosts, case, sides, rounds or (3 if quick else 5))
            except (BriskError, OSError) as error:
                _leave_out(report, case.name, error)
            else:
                report.rows.extend(_rows(case, starts, rate))

        for case in cases:
            measure(case)
        for label, file in files.items():
            try:
                case = dataclasses.replace(case_of(str(file)), name=label)
            except UnusableArgumentError as error:
                _leave_out(report, label, error)
            else:
                measure(case)
    add_checks(report)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("streamed", __doc__, "one model, three rounds")
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME|FILE",
        help="a sample, a network of `brisk bench cold`, or an ONNX file; any number",
    )  # fmt: skip
    add_models_option(parser)
    parser.add_argument("--sides", type=listed, default=SIDES, help=",".join(ALL_SIDES))
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--rate", type=float, default=RATE_MBIT_S, help="of each link, Mbit/s")
    return run_command(parser, arguments, run, bars("first_s", "model", "side"))


def add_checks(report: Report) -> None:
    """Add every check that the rows allow."""
    measured = [row for row in report.rows if REASON not in row]
    for model in dict.fromkeys(row["model"] for row in measured):
        rows = {row["side"]: row for row in measured if row["model"] == model}
        if STREAMED not in rows:
            continue
        text = f"{model}: first answer behind the last byte, over a warm answer"
        report.checks.append(check_limit(text, rows[STREAMED]["late"], "<=", MOST_LATE, digits=2))
        if DOWNLOADED in rows:
            text = f"{model}: downloading first, over this"
            gain = rows[DOWNLOADED]["first_s"] / rows[STREAMED]["first_s"]
            least = LEAST_GAIN.get(model, 1.0)
            report.checks.append(check_limit(text, gain, ">=", least, digits=3))
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


def _starts(
    hosts: Scene, case: Case, sides: Sequence[str], rounds: int
) -> Mapping[str, Sequence[Mapping[str, float]]]:
    """Return the starts of each side. Raises BriskError."""
    folder = hosts.folder / _PUBLISHED
    folder.mkdir()
    try:
        tasks = {side: _task(hosts, case.file, side) for side in sides}
        with hosts.starting(case) as starting:
            return in_rounds(sides, rounds, lambda side: told(starting, "new", **tasks[side]))[0]
    finally:
        shutil.rmtree(folder)


def _task(hosts: Scene, file: Path, side: str) -> dict[str, str]:
    """Publish the model for a side; return what the host's program is to read."""
    place = f"{_PUBLISHED}/{side}"
    if side == DOWNLOADED:
        place_model(file, hosts.folder / place)
        return {"url": f"{hosts.url}/{place}"}
    return {"remote": hosts.publish(file, place, with_form=side == STREAMED)}


def _leave_out(report: Report, model: str, error: Exception) -> None:
    reason = one_line(str(error))
    report.rows.append({"model": model, REASON: reason})
    report.checks.append(Check(f"{model}: is measured", reason, "yes", False))
