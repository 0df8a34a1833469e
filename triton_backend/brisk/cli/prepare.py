"""``brisk prepare``: the artefacts of a model, measured and written ahead of its first start."""

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
        typer.Option(min=1, help="Cores of the runtime it is for; the usable ones unless given."),
    ] = None,
    disk: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="What kept weights may take, as a multiple of the model's; 3, for segments 4.5.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure each layer's candidates here, choose for the first answer, and keep the result.

    A start of the model then maps its artefact instead of reading ONNX. The runtime makes
    artefacts by itself, in the background; this is for images and for the first start of all.
    """
    from brisk.cli.model_entry import version_files
    from brisk.segments.engine import Engine

    files = list(version_files(model).values()) if model.is_dir() else [model.resolve()]
    if os.environ.get("BRISK_ENGINE") != Engine.BRISK.value:
        cores = threads or len(os.sched_getaffinity(0))
        for file in files:
            _prepare_segments(file, cores, disk)
        return
    import torch

    from brisk.execution.preparation import DISK_FACTOR
    from brisk.execution.preparation import prepare as prepare_model
    from brisk.segments.starting import usable_cores

    cores = threads or usable_cores()
    for file in files:
        try:
            made = prepare_model(
                file,
                torch.device("cpu"),
                cores,
                disk_factor=DISK_FACTOR if disk is None else disk,
            )
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


def _prepare_segments(file: Path, cores: int, disk: float | None) -> None:
    from brisk.exits.taps import tapped_values
    from brisk.exits.versions import latest
    from brisk.segments.preparation import DISK_FACTOR
    from brisk.segments.preparation import prepare as prepare_segments
    from brisk.segments.prepared import LEAST_GAIN

    try:
        factor = DISK_FACTOR if disk is None else disk
        made = prepare_segments(file, cores, tapped_values(latest(file)), disk_factor=factor)
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
