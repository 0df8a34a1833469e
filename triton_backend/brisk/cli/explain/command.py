"""``brisk explain``: what a model is served as: its segments, or its layers on a GPU, and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from brisk.errors import InvalidConfigurationError


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
        bool, typer.Option("--all", help="List the nodes of every segment; on a GPU, every layer.")
    ] = False,
) -> None:
    """Print what a model is served as: in segments by ONNX Runtime, or in layers by torch.

    A summary first, then a line for each segment: its nodes, its predicted time, what crosses its
    end and how its weights are kept.
    """
    from rich.console import Console

    from brisk.pipelines import is_pipeline

    if not re.fullmatch(r"cpu|cuda:\d+", device):
        raise InvalidConfigurationError(f"there is no device '{device}'; name cpu or cuda:N")
    file = model_file(model, version)
    console = Console(soft_wrap=True, highlight=False)
    if is_pipeline(file):
        from brisk.cli.entries.pipeline import pipeline_text

        lines = pipeline_text(file)
    elif device == "cpu":
        from brisk.cli.explain.segments import segments_text

        lines = segments_text(file, model if model.is_dir() else None, every=every)
    else:
        from brisk.cli.explain.segments import layers_text

        lines = layers_text(file, device, every=every)
    for line in lines:
        console.print(line, markup=False)


def model_file(model: Path, version: int | None) -> Path:
    """The ONNX file of ``version``, the newest for None, or ``model`` itself if it is no folder.

    Raises InvalidModelError where there is no such version.
    """
    from brisk.cli.entries.model import version_files
    from brisk.errors import InvalidModelError

    if not model.is_dir():
        return model.resolve()  # whoever names a link to a command means what it leads to
    files = version_files(model)
    chosen = max(files) if version is None else version
    if chosen not in files:
        raise InvalidModelError(f"'{model}' has no version {chosen}, only {list(files)}")
    return files[chosen]
