"""The model that a command is about: its argument, and the entries where it is a repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from brisk.cli.views.error_text import tell_error
from brisk.cli.views.model_files import entries_in
from brisk.errors import BriskError

ModelArgument = Annotated[
    Path,
    typer.Argument(
        help="A model's directory in the repository, or an ONNX file.",
        metavar="MODEL_DIR",
        show_default=False,
    ),
]
VersionOption = Annotated[
    int | None, typer.Option(help="Version of the model; the newest unless given.")
]

DeviceOption = Annotated[str, typer.Option(help="cpu or cuda:NUMBER.")]


def for_each_entry(model: Path, act: Callable[[Path], None]) -> None:
    """Call ``act`` with ``model``, or with each entry of a repository: errors of one are printed,
    and do not keep it from the others.

    Raises what ``act`` raises for a model, and typer.Exit with status 1 for a repository of which
    some entries failed.
    """
    entries = entries_in(model)
    has_failed = False
    for entry in entries:
        try:
            act(entry)
        except BriskError as error:
            if entries == [model]:
                raise
            tell_error(str(error))
            has_failed = True
    if has_failed:
        raise typer.Exit(1)
