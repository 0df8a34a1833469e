"""Arguments that several commands have: models, with the loop over entries if one names a
repository, and shapes of inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from brisk.cli.views.error_text import tell_error
from brisk.cli.views.model_files import entries_in
from brisk.errors import BriskError, InvalidConfigurationError

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

ShapesOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Shape of a synthetic input whose sizes are open; may be given again.",
        metavar="NAME=1,3,224,224",
    ),
]


def read_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that ``--shape`` gives, by input. Raises InvalidConfigurationError."""
    shapes = {}
    for text in texts:
        if not re.fullmatch(r".+=[1-9]\d{0,17}(,[1-9]\d{0,17})*", text):
            raise InvalidConfigurationError(f"--shape {text}: expected NAME=1,3,224,224")
        name, _, sizes = text.rpartition("=")
        shapes[name] = tuple(map(int, sizes.split(",")))
    return shapes


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
