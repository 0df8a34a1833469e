"""``brisk caches show`` and ``export``: show a model's learned caches, and export them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brisk.cli.commands.models import ModelArgument, VersionOption
from brisk.cli.views.model_files import model_file
from brisk.errors import InvalidModelError

if TYPE_CHECKING:
    from brisk.exits.cascade import Cascade


def show(
    model: ModelArgument,
    version: VersionOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Measure with the kept data; draw the distribution of latencies, and agreement "
            "against latency, into this folder."
        ),
    ] = None,
) -> None:
    """Show a model's caches: exits, hit rates, bounds, memory, and what a server made of them."""
    from rich.console import Console

    from brisk.cli.views.caches import draw_caches, print_cascade, print_live_figures
    from brisk.cli.views.learning import learning_text, read_aim
    from brisk.exits.files.versions import latest, trained_file

    file = model_file(model, version)
    path = trained_file(file)
    if not path.exists():
        train = f"`brisk caches train {model} --data DATA` makes them"
        aim = read_aim(model, file) if model.is_dir() else None
        if aim is None:
            raise InvalidModelError(f"'{file}' has no caches; {train}")
        raise InvalidModelError(
            f"'{file}' has no caches yet: {learning_text(file, aim)}; `brisk status` shows what a "
            f"server learns, or {train} now"
        )
    cascade = _read(file, path)
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    print_cascade(console, cascade)
    versions = {"caches": cascade}
    adapted = latest(file)
    if adapted != path:
        try:
            learned = _read(file, adapted)
            console.print("adapted to the traffic, and served instead:", style="bold")
            print_cascade(console, learned)
            versions["adapted"] = learned
        except InvalidModelError as error:
            console.print(str(error))
    print_live_figures(console, file)
    if plot is not None:
        console.print(f"drawn: {draw_caches(file, versions, plot)}")


def export(
    model: ModelArgument,
    folder: Annotated[Path, typer.Argument(help="Folder for the ONNX files.", show_default=False)],
    version: VersionOption = None,
) -> None:
    """Write each exit, as it is evaluated, to an ONNX file, for inspection."""
    from brisk.exits.files.versions import latest

    file = model_file(model, version)
    path = latest(file)
    if not path.exists():
        raise InvalidModelError(f"'{file}' has no caches")
    cascade = _read(file, path)
    folder.mkdir(parents=True, exist_ok=True)
    for exit_ in cascade.exits:
        target = folder / f"{exit_.name}.onnx"
        target.write_bytes(exit_.model)
        typer.echo(f"written: {target} (reads '{exit_.point.value}')")


def _read(file: Path, path: Path) -> Cascade:
    """Read the caches at ``path`` of the model ``file``. Raises InvalidModelError."""
    from brisk.exits.cascade_file import digest_of, read_cascade
    from brisk.exits.files.container import DamagedFileError

    try:
        return read_cascade(path, digest_of(file))
    except (DamagedFileError, OSError) as error:
        raise InvalidModelError(f"'{path}' is ignored by the server: {error}") from error
