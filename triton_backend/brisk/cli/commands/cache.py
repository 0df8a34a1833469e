"""``brisk cache``: lists and removes prepared forms and copies of models on the disk."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from brisk.errors import ArtefactError, InvalidConfigurationError, counted

cache = typer.Typer(
    name="cache",
    help="What is stored for the next start of models: list it, clear it.",
    no_args_is_help=True,
)

_DAY_S = 86400.0


def _check_directory() -> None:
    """Raise InvalidConfigurationError if the cache directory is a file; a missing one is empty."""
    from brisk.settings import cache_directory

    directory = cache_directory()
    if directory.exists() and not directory.is_dir():
        raise InvalidConfigurationError(
            f"the cache directory '{directory}' is no directory (BRISK_CACHE_DIR)"
        )


@cache.command("list")
def show() -> None:
    """The prepared forms and the copies of models that lie elsewhere, those that were used last
    first."""
    from rich.console import Console
    from rich.table import Table

    from brisk.artefacts import room, store
    from brisk.artefacts.container import Container

    _check_directory()
    artefacts = room.kept_artefacts()
    table = Table("MiB", "last used", "in use", "made from")
    for each in reversed(artefacts):
        is_held = False
        try:
            is_held = room.is_held(each.path)
            made_from = str(Container(each.path).content["model"])
        except FileNotFoundError:
            continue
        except (ArtefactError, OSError, KeyError, TypeError) as error:
            made_from = f"not usable: {error}"
        table.add_row(*_cells(each.size_bytes, each.used_s, is_held), made_from)
    directory = store.artefacts_directory()
    if artefacts:
        Console(markup=False, emoji=False).print(table)
        total = sum(each.size_bytes for each in artefacts) / 2**20
        print(f"{len(artefacts)} in {directory}: {total:.1f} of {room.limit() / 2**20:.0f} MiB")
    else:
        print(f"{directory} holds no prepared form")
    _show_copies()


def _cells(size_bytes: int, used_s: float, is_held: bool) -> tuple[str, str, str]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(used_s))
    return f"{size_bytes / 2**20:.1f}", used, "yes" if is_held else ""


def _show_copies() -> None:
    from rich.console import Console
    from rich.table import Table

    from brisk.copies.local import ORIGIN
    from brisk.copies.remote import remote_directory
    from brisk.sourcing.room import kept_copies, locked
    from brisk.sourcing.sources.addresses import shown_url

    if not remote_directory().is_dir():
        return
    with locked(remote_directory()):
        copies = kept_copies(remote_directory())
    if not copies:
        return
    table = Table("MiB", "last used", "in use", "copy of")
    for each in sorted(copies, key=lambda each: each.used_s, reverse=True):
        origin = each.folder / ORIGIN
        url = shown_url(origin.read_text()) if origin.is_file() else each.folder.name
        table.add_row(*_cells(each.size_bytes, each.used_s, each.is_held), url)
    Console(markup=False, emoji=False).print(table)
    total = sum(each.size_bytes for each in copies) / 2**20
    print(f"{counted(len(copies), 'copy', 'copies')} in {remote_directory()}: {total:.1f} MiB")


@cache.command()
def clear(
    unused_days: Annotated[
        float,
        typer.Option(min=0.0, help="Only what was not used for this many days; 0: all."),
    ] = 0.0,
) -> None:
    """Remove prepared forms and copies that nobody uses; models start from their own files then,
    and those that lie elsewhere are fetched again. Also remove kept inputs of requests, and what
    interrupted trainings have left; caches that were learned stay."""
    from brisk.artefacts import room
    from brisk.runtime.early_exit.kept_inputs import clear_inputs

    _check_directory()
    before_s = time.time() - unused_days * _DAY_S
    chosen = [each for each in room.kept_artefacts() if each.used_s <= before_s]
    removed = [each for each in chosen if room.remove(each.path)]
    room.sweep()
    freed = sum(each.size_bytes for each in removed) / 2**20
    print(f"removed {len(removed)} of {freed:.1f} MiB; {len(chosen) - len(removed)} are in use")
    _clear_copies(before_s)
    if freed_inputs := clear_inputs(before_s):
        print(f"removed inputs kept to learn from: {freed_inputs / 2**20:.1f} MiB")


def _clear_copies(before_s: float) -> None:
    from brisk.copies.remote import remote_directory
    from brisk.sourcing.room import kept_copies, locked, remove

    if not remote_directory().is_dir():
        return
    with locked(remote_directory()):
        copies = [each for each in kept_copies(remote_directory()) if each.used_s <= before_s]
        gone = [each for each in copies if remove(each.folder)]
    if copies:
        freed = sum(each.size_bytes for each in gone) / 2**20
        in_use = len(copies) - len(gone)
        copies_gone = counted(len(gone), "copy", "copies")
        print(f"removed {copies_gone} of {freed:.1f} MiB; {in_use} are in use")
