"""``brisk prepare``: the prepared form of a model, made ahead of its first start."""

from __future__ import annotations

import os
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
        typer.Option(min=1, help="Threads to measure with; the usable cores unless given."),
    ] = None,
    disk: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="What kept weights may take, as a multiple of the model's files; 4.5.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Optimise each segment of a model here, measure what packing its weights gains, and keep it.

    A start of the model then maps what is kept instead of reading ONNX. The runtime prepares
    models by itself, in the background; this is for images and for the first start of all.
    """
    from brisk.cli.entries.model import version_files

    files = list(version_files(model).values()) if model.is_dir() else [model.resolve()]
    cores = threads or len(os.sched_getaffinity(0))
    for file in files:
        _prepare(file, cores, disk)


def _prepare(file: Path, cores: int, disk: float | None) -> None:
    from brisk.exits.files.container import tapped_values
    from brisk.exits.files.versions import latest
    from brisk.segments.prepared.form import LEAST_GAIN
    from brisk.segments.prepared.preparation import DISK_FACTOR, prepare

    try:
        factor = DISK_FACTOR if disk is None else disk
        made = prepare(file, cores, tapped_values(latest(file)), disk_factor=factor)
    except OSError as error:
        raise InvalidConfigurationError(
            f"the prepared form of {file} cannot be written: {error}"
        ) from error
    print(f"{file}: {len(made.gains)} segments")
    for segment, gain in zip(made.plan.segments, made.gains, strict=True):
        if gain is None:
            words = "not measured: its inputs could not be made up; packed when there is time"
        elif gain < LEAST_GAIN:
            words = f"{gain:.2f} times as fast with packed weights: stays as it is"
        else:
            words = f"{gain:.2f} times as fast with packed weights: packed when there is time"
        print(f"  {segment.index}: {segment.words}")
        print(f"     {words}")
    size = made.path.stat().st_size / 1e6
    print(f"  wrote {made.path} ({size:.1f} MB) in {made.seconds:.1f} s")
