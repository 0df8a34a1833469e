"""``brisk explain``: the layers of a model and the solution chosen for each, with reasons."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brisk.errors import InvalidConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from brisk.execution.plan import LayerPlan, Plan


def explain(
    model: Annotated[
        Path,
        typer.Argument(
            help="A model's directory in the repository, or an ONNX file.",
            metavar="MODEL_DIR",
            show_default=False,
        ),
    ],
    version: Annotated[
        int | None, typer.Option(help="Version to explain; the newest unless given.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda:N.")] = "cpu",
    every: Annotated[
        bool, typer.Option("--all", help="List every candidate of every layer with its verdict.")
    ] = False,
) -> None:
    """Print a model's layers, their problems and the chosen solutions with the reasons."""
    from rich.console import Console

    from brisk.cli.explain_segments import print_segments
    from brisk.cli.pipeline_entry import pipeline_text
    from brisk.exits.versions import latest
    from brisk.pipelines import is_pipeline

    if not re.fullmatch(r"cpu|cuda:\d+", device):
        raise InvalidConfigurationError(f"there is no device '{device}'; name cpu or cuda:N")
    file = model_file(model, version)
    console = Console(soft_wrap=True, highlight=False)
    by_torch = device != "cpu" or os.environ.get("BRISK_ENGINE") == "brisk"
    if by_torch:
        _print_slowness(console, file, device)
    if is_pipeline(file):
        for line in pipeline_text(file):
            console.print(line, markup=False)
        return
    if by_torch or latest(file).exists():
        _print_layers(console, file, device, every=every)
    else:
        print_segments(console, file)


def _print_layers(console: Console, file: Path, device: str, *, every: bool) -> None:
    """Of a model that torch computes."""
    import torch

    from brisk.cli.explain_start import print_start
    from brisk.execution.joining import refusals
    from brisk.execution.plan import make_plan
    from brisk.graph.reader import read_program
    from brisk.solutions.catalogue import default_catalogue

    program = read_program(file)
    plan = make_plan(program, torch.device(device), default_catalogue())
    _print_header(console, plan)
    alone = refusals(program, plan.layers)
    for layer, reason in zip(plan.layers, alone, strict=True):
        _print_layer(console, layer, reason)
        if every:
            _print_candidates(console, layer)
    _print_summary(console, plan)
    _print_joined(console, sum(reason is None for reason in alone))
    print_start(console, file, plan)


def model_file(model: Path, version: int | None) -> Path:
    """The ONNX file of ``version``, the newest for None, or ``model`` itself if it is no folder.

    Raises InvalidModelError where there is no such version.
    """
    from brisk.cli.model_entry import version_files
    from brisk.errors import InvalidModelError

    if not model.is_dir():
        return model.resolve()  # whoever names a link to a command means what it leads to
    files = version_files(model)
    chosen = max(files) if version is None else version
    if chosen not in files:
        raise InvalidModelError(f"'{model}' has no version {chosen}, only {list(files)}")
    return files[chosen]


def _print_slowness(console: Console, file: Path, device: str) -> None:
    """A line for each kind of arithmetic that this processor is slow at."""
    from brisk.graph.arithmetic import processor_flags, slow_arithmetic
    from brisk.pipelines import is_pipeline, read_pipeline

    if device != "cpu":
        return
    networks = [("", file)]
    if is_pipeline(file):
        networks = [(f"{words}: ", path) for words, path in read_pipeline(file).networks]
    for words, path in networks:
        for slowness in slow_arithmetic(path, processor_flags()):
            console.print(f"slow here: {words}{slowness}", style="bold yellow", markup=False)


def _print_header(console: Console, plan: Plan) -> None:
    from brisk.cli.explain_text import variable_text

    program = plan.program
    weights_bytes = sum(array.nbytes for array in program.weights.values())
    console.print(f"program '{program.name}' on {plan.device}", style="bold", markup=False)
    for kind, variables in (("input", program.inputs), ("output", program.outputs)):
        for variable in variables:
            console.print(f"  {kind} {variable_text(variable)}", markup=False)
    console.print(f"  {len(program.layers)} layers, {weights_bytes / 1e6:.1f} MB of weights")


def _print_layer(console: Console, planned: LayerPlan, alone: str | None) -> None:
    """``alone``: why the layer is in no run of small layers; None where it is."""
    from brisk.cli.explain_text import choice_text, problem_text

    layer = planned.problem.layer
    console.print(f"{layer.index:>4}  {layer.name}", style="bold", markup=False)
    console.print(f"      problem   {problem_text(planned.problem)}", markup=False)
    console.print(f"      solution  {choice_text(planned)}", style="green", markup=False)
    joined = "yes" if alone is None else f"no: {alone}"
    console.print(f"      joined    {joined}", style="dim", markup=False)


def _print_candidates(console: Console, planned: LayerPlan) -> None:
    from brisk.solutions.catalogue import default_catalogue

    for solution, verdict in default_catalogue().explain(planned.problem):
        mark, style = ("+", "dim green") if verdict.ok else ("-", "dim yellow")
        console.print(
            f"      {mark} {solution.name} [{solution.pattern.value}]: {verdict.reason}",
            style=style,
            markup=False,
        )


def _print_summary(console: Console, plan: Plan) -> None:
    from brisk.cli.explain_text import solution_counts

    console.print("solutions", style="bold")
    for name, count in solution_counts(plan):
        console.print(f"  {count:>4} x {name}", markup=False)


def _print_joined(console: Console, count: int) -> None:
    from brisk.execution.joining import executor_absence

    if not count:
        return
    absence = executor_absence()
    how = f"one by one after all: {absence}" if absence else "as one call of machine code each"
    console.print(f"{count} layers are joined in runs, computed {how}", markup=False)
