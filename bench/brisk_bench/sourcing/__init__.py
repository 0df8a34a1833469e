"""`brisk bench sourcing`: how soon a model answers, by where its bytes are and what of it travels.

Three hosts, network namespaces of this machine with a shaped link each: a web server of published
models, a peer whose courier has a copy, and the host whose Triton with Brisk is asked to load.
Parts: ``levels``, from this host's memory to the web server (Flashpoint, figure 8.5); ``travels``,
a prepared form or weights as they are; ``tuned``, other weights for a model that is warm here;
``cloud``, Triton's own repository in a bucket. The links are measured first; where they
do not carry what they should, nothing else is. ``brisk bench chain`` has one sender and several
receivers, ``brisk bench streamed`` more models.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from brisk_bench.engines.case import made_case
from brisk_bench.harness.command_line import benchmark_parser, check_known, listed, run_command
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Report, plot_bars
from brisk_bench.sourcing import cloud, levels, travels, tuned
from brisk_bench.sourcing.scene import scene

PARTS = (levels.PART, travels.PART, tuned.PART, cloud.PART)
QUICK_PARTS = (levels.PART, travels.PART, tuned.PART)

MODEL, LARGE_MODEL = "resnet50", "vgg16"
"""The model of all parts but ``travels``, and that of ``travels``, whose prepared form was 1.7
times as large as its weights."""

ROUNDS = {levels.PART: 5, tuned.PART: 5, travels.PART: 5, cloud.PART: 3}

NOTES = ("hosts share this machine's processors; no latency of a network, no loss",)


def run(
    quick: bool = False,
    parts: Sequence[str] = (),
    model: str = MODEL,
    large_model: str = LARGE_MODEL,
    rounds: int = 0,
) -> Report:
    """Measure the parts.

    ``parts``: of PARTS; none: all, or QUICK_PARTS if ``quick``.
    ``model``, ``large_model``: a sample, a network of ``brisk bench cold``, or an ONNX file; the
      second is that of ``travels``.

    Raises UnusableArgumentError for what does not exist, NoNamespacesError if hosts cannot be
    made, UnfitLinksError if links do not carry what they should.
    """
    chosen = parts or (QUICK_PARTS if quick else PARTS)
    check_known("part", chosen, PARTS)
    packages = ("onnxruntime", "tritonclient", "aiohttp", "numpy")
    report = new_report("sourcing", packages, NOTES, threads="all")
    with scene() as hosts:
        for module in (levels, tuned, travels, cloud):
            if module.PART in chosen:
                named = large_model if module is travels else model
                case = made_case(named, hosts.scratch)
                report.notes.extend(module.NOTES)
                count = rounds or (1 if quick else ROUNDS[module.PART])
                module.measure(report, hosts, case, count)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("sourcing", __doc__, f"one round, {', '.join(QUICK_PARTS)}")
    parser.add_argument("--parts", type=listed, default=(), help=",".join(PARTS))
    parser.add_argument("--model", default=MODEL, metavar="NAME|FILE")
    parser.add_argument("--large-model", default=LARGE_MODEL, metavar="NAME|FILE", help="travels")
    parser.add_argument("--rounds", type=int, default=0)
    return run_command(parser, arguments, run, plot_parts)


def plot_parts(report: Report, folder: Path) -> list[Path]:
    """Plot bars of the first answers of each part."""
    files: list[Path] = []
    for part, key in (
        (levels.PART, "level"),
        (travels.PART, "side"),
        (tuned.PART, "side"),
        (cloud.PART, "side"),
    ):
        rows = [row for row in report.rows if row["part"] == part]
        drawn = Report(f"sourcing-{part}", {}, {}, rows, [])
        files += plot_bars(drawn, folder, "first_s", "model", key)
    return files
