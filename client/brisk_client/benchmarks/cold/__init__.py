"""`brisk bench cold`: from "load this model" to its first answer.

In process: each engine in a fresh process whose libraries are imported and which has computed
nothing but an unrelated small model, engines in turns.
Then the same with the page cache dropped, beside another load on the machine, and through a real
Triton.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk_client.benchmarks.engines.model_inputs import (
    NOTHING_GIVEN,
    GivenInputs,
    add_input_option,
    add_models_option,
    models_in,
    read_given_of,
)
from brisk_client.benchmarks.harness.command_line import benchmark_parser, deliver, measured
from brisk_client.report import Report

PARTS = ("process", "disk", "load", "served")
"""In process with a hot page cache; from the disk; beside other load; through Triton."""


@dataclass(frozen=True, slots=True)
class ColdOptions:
    """What of the benchmark is run.

    Empty ``models`` and ``engines`` mean all, ``threads`` 0 all usable cores, ``rounds`` 0 as many
    as usual. A model is a name, or an ONNX file; ``given``: its inputs. ``folder`` keeps built
    models and what engines prepare; ``file`` takes the report after every part of every model and
    batch. ``resumes``: parts that it holds are not measured again, and checks are of all its rows.
    """

    quick: bool = False
    models: Sequence[str] = ()
    engines: Sequence[str] = ()
    parts: Sequence[str] = PARTS
    threads: int = 0
    batches: Sequence[int] = (1,)
    rounds: int = 0
    folder: Path | None = None
    file: Path | None = None
    resumes: bool = False
    given: GivenInputs = NOTHING_GIVEN


def run(choice: ColdOptions) -> Report:
    """Measure. Raises UnusableArgumentError for a name that there is not, and for a file that
    cannot be resumed."""
    from brisk_client.benchmarks.cold.benchmark import run_parts  # engines' processes go without

    return run_parts(choice)


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    from brisk_client.benchmarks.cold.benchmark import plot_parts, show_parts

    parser = _parser()
    chosen = parser.parse_args(arguments)

    def run_chosen() -> Report:
        models = [*chosen.model, *map(str, models_in(chosen.models))]
        choice = ColdOptions(
            quick=chosen.quick,
            models=models,
            engines=_listed(chosen.engines),
            parts=_listed(chosen.parts),
            threads=chosen.threads,
            batches=chosen.batch or (1,),
            rounds=chosen.rounds,
            folder=chosen.folder,
            file=chosen.json,
            resumes=chosen.resume,
            given=read_given_of(chosen.input, len(models)),
        )
        return run(choice)

    report = measured(parser, run_chosen)
    return deliver(report, chosen, lambda folder: plot_parts(report, folder), show_parts)


def _parser() -> argparse.ArgumentParser:
    from brisk_client.benchmarks.cold.engines import ENGINES
    from brisk_client.benchmarks.cold.models import MODELS

    parser = benchmark_parser("cold", __doc__, "fewer samples and engines")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help=f"{', '.join(MODELS)}, or an ONNX file",
    )
    add_models_option(parser)
    add_input_option(parser)
    parser.add_argument("--engines", default="", metavar="A,B", help=f"{', '.join(ENGINES)}")
    parser.add_argument(
        "--parts", default=",".join(PARTS), metavar="A,B", help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument("--threads", type=int, default=0, help="of every engine (default: cores)")
    parser.add_argument(
        "--batch", action="append", type=int, default=[], metavar="N", help="batch sizes (1)"
    )
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="of all engines")
    parser.add_argument("--folder", type=Path, help="for models and artefacts")
    parser.add_argument(
        "--resume", action="store_true", help="keep the rows in --json FILE, measure what lacks"
    )
    return parser


def _listed(text: str) -> list[str]:
    return [name for name in text.split(",") if name]
