"""`brisk bench cold`: from "load this model" to its first answer.

In process: each engine in a fresh process whose libraries are imported and which has computed
nothing but an unrelated small model, engines in turns.
Then the same with the page cache dropped, beside another load on the machine, and through a real
Triton.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from brisk_client.benchmarks.engines.model_files import (
    NoModelsError,
    add_models_option,
    check_files,
    models_in,
)
from brisk_client.benchmarks.engines.model_inputs import (
    NOTHING_GIVEN,
    GivenInputs,
    InvalidInputError,
    add_input_option,
    read_given,
)
from brisk_client.benchmarks.harness.command_line import benchmark_parser, deliver
from brisk_client.report import Report

PARTS = ("process", "disk", "load", "served")
"""In process with a hot page cache; from the disk; beside other load; through Triton."""


def run(
    quick: bool = False,
    models: Sequence[str] = (),
    engines: Sequence[str] = (),
    parts: Sequence[str] = PARTS,
    threads: int = 0,
    batches: Sequence[int] = (1,),
    rounds: int = 0,
    folder: Path | None = None,
    plots: Path | None = None,
    file: Path | None = None,
    resumes: bool = False,
    given: GivenInputs = NOTHING_GIVEN,
) -> Report:
    """Measure. Empty ``models`` and ``engines`` mean all, ``threads`` 0 all usable cores,
    ``rounds`` 0 as many as usual. A model is a name, or an ONNX file; ``given``: its inputs.

    ``folder`` keeps built models and what engines prepare; ``plots`` takes figures and a trace;
    ``file`` the report, after every part of every model and batch. ``resumes``: parts that it
    holds are not measured again, and checks and plots are of all its rows. Raises LookupError
    for a name that there is not, UnusableReportError for a file that cannot be resumed.
    """
    from brisk_client.benchmarks.cold.benchmark import ColdOptions, run_parts

    choice = ColdOptions(
        quick, models, engines, parts, threads, batches, rounds, folder, plots, given
    )
    return run_parts(choice, file, resumes=resumes)


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    from brisk_client.benchmarks.cold.report.drawing import show_parts
    from brisk_client.benchmarks.cold.report.ledger import UnusableReportError

    parser = _parser()
    chosen = parser.parse_args(arguments)
    try:
        _check_names(chosen)
        models = [*chosen.model, *map(str, models_in(chosen.models))]
        given = read_given(chosen.input)
        if given.names() and len(models) != 1:
            raise InvalidInputError(
                "--input is of one model; beside each of several lies its NAME.inputs.npz"
            )
        report = run(
            chosen.quick,
            models,
            _listed(chosen.engines),
            _listed(chosen.parts),
            chosen.threads,
            chosen.batch or (1,),
            chosen.rounds,
            chosen.folder,
            chosen.plot,
            chosen.json,
            chosen.resume,
            given,
        )
    except (UnknownNameError, UnusableReportError, NoModelsError, InvalidInputError) as error:
        parser.error(str(error))
    return deliver(report, chosen, None, show_parts)


class UnknownNameError(Exception):
    """The command line names what there is not; the message says what there is."""


def _check_names(chosen: argparse.Namespace) -> None:
    """Raises UnknownNameError, and NoModelsError for a file that is not there."""
    from brisk_client.benchmarks.cold.benchmark import is_file
    from brisk_client.benchmarks.cold.models import model_of
    from brisk_client.benchmarks.cold.registry import engine_of

    check_files([Path(name) for name in chosen.model if is_file(name)])
    try:
        for name in chosen.model:
            if not is_file(name):
                model_of(name)
        for name in _listed(chosen.engines):
            engine_of(name)
    except LookupError as error:
        raise UnknownNameError(error.args[0]) from error
    for name in _listed(chosen.parts):
        if name not in PARTS:
            raise UnknownNameError(f"there is no part '{name}'; there are: {', '.join(PARTS)}")


def _parser() -> argparse.ArgumentParser:
    from brisk_client.benchmarks.cold.models import model_names
    from brisk_client.benchmarks.cold.registry import engine_names

    parser = benchmark_parser("cold", __doc__, "fewer samples and engines")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help=f"{', '.join(model_names())}, or an ONNX file",
    )
    add_models_option(parser)
    add_input_option(parser)
    parser.add_argument(
        "--engines", default="", metavar="A,B", help=f"{', '.join(engine_names())}"
    )
    parser.add_argument(
        "--parts", default=",".join(PARTS), metavar="A,B", help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument("--threads", type=int, default=0, help="of every engine (default: cores)")
    parser.add_argument(
        "--batch", action="append", type=int, default=[], metavar="N", help="batch sizes (1)"
    )
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="of all engines")
    parser.add_argument("--folder", type=Path, default=None, help="for models and artefacts")
    parser.add_argument(
        "--resume", action="store_true", help="keep the rows in --json FILE, measure what lacks"
    )
    return parser


def _listed(text: str) -> list[str]:
    return [name for name in text.split(",") if name]
