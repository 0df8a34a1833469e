"""``brisk prepare``: the artefacts of a model, measured and written ahead of its first start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from brisk.errors import InvalidConfigurationError


def prepare(
    model: Annotated[
        Path,
        typer.Argument(
            help="A model's directory in the repository, or an ONNX file.",
            metavar="MODEL_DIR",
            show_default=False,
        ),
    ],
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Cores of the runtime it is for; the usable ones unless given."),
    ] = None,
    disk: Annotated[
        float,
        typer.Option(min=0.0, help="What kept weights may take, as a multiple of the model's."),
    ] = 3.0,
) -> None:
    """Measure each layer's candidates here, choose for the first answer, and keep the result.

    A start of the model then maps its artefact instead of reading ONNX. The runtime makes
    artefacts by itself, in the background; this is for images and for the first start of all.
    """
    import torch

    from brisk.cli.model_entry import version_files
    from brisk.execution.preparation import prepare as prepare_model
    from brisk.segments.starting import usable_cores

    files = list(version_files(model).values()) if model.is_dir() else [model.resolve()]
    cores = threads or usable_cores()
    for file in files:
        try:
            made = prepare_model(file, torch.device("cpu"), cores, disk_factor=disk)
        except OSError as error:
            raise InvalidConfigurationError(
                f"the artefact of {file} cannot be written: {error}"
            ) from error
        cached = sum(layer.cached for layer in made.layers)
        size = made.path.stat().st_size / 1e6
        print(f"{file}: {len(made.layers)} layers, {cached} with kept weights")
        if made.schedule is not None:
            print(f"  predicted: {made.schedule.end_ns / 1e6:.1f} ms from program to first answer")
        print(f"  wrote {made.path} ({size:.1f} MB) in {made.seconds:.1f} s")
