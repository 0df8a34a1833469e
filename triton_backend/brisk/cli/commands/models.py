"""The model argument of commands, and the loop over entries if it names a repository."""

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
    int | None, typer.Option(help="Version of the model; by default the newest.")
]

DeviceOption = Annotated[str, typer.Option(help="cpu or cuda:NUMBER.")]


def for_each_entry(model: Path, act: Callable[[Path], None]) -> None:
    """Call ``act`` with ``model``, or with each entry if it is a repository.

    For a model, raises what ``act`` raises. For a repository, prints the errors of entries, each
    with its entry, and goes on; raises typer.Exit with status 1 in the end if some entries failed.
    """
    entries = entries_in(model)
    has_failed = False
    for entry in entries:
        try:
            act(entry)
        except BriskError as error:
            if entries == [model]:
                raise
            text = str(error)
            is_named = text.startswith(f"{entry}/") or f"'{entry}" in text
            tell_error(text if is_named else f"{entry}: {text}")
            has_failed = True
    if has_failed:
        raise typer.Exit(1)
