"""``brisk config``: a complete ``config.pbtxt`` from a model's ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from brisk.errors import InvalidConfigurationError


def config(
    model_directory: Annotated[
        Path,
        typer.Argument(
            help="The model's directory in the repository (holds 1/model.onnx).",
            metavar="MODEL_DIR",
            show_default=False,
        ),
    ],
    max_batch_size: Annotated[
        int,
        typer.Option(
            min=0,
            help="For a model whose first dimension is dynamic everywhere; 0 serves it unbatched.",
        ),
    ] = 8,
    stdout: Annotated[
        bool, typer.Option("--stdout", help="Print the text instead of writing it.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a config.pbtxt.")] = False,
) -> None:
    """Write a complete config.pbtxt, so that Triton need not auto-complete it.

    Triton spends about a second on auto-completion at every load; with complete entries the
    server can run with `--disable-auto-complete-config`.
    """
    target = model_directory / "config.pbtxt"
    if target.exists() and not stdout and not force:
        raise InvalidConfigurationError(
            f"'{target}' exists; --force overwrites it, --stdout prints instead"
        )
    from brisk.cli.entries.model import configuration_text

    text = configuration_text(model_directory, max_batch_size)
    if stdout:
        print(text, end="")
        return
    target.write_text(text)
    print(f"wrote {target}")
