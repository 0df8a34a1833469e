"""The decision whether a server can run without Triton's auto-completion, and its options then."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brisk.errors import InvalidConfigurationError
from brisk.protocol.entry_files import VIEW_VARIABLE
from brisk.settings import runtime_directory
from brisk.stub.config.completion import default_max_batch_size
from brisk.triton.options import option, options_named, without_options
from brisk.view.entry_text import entries_of
from brisk.view.mirror import make_root, place_of, show

REPOSITORY_OPTIONS = ("model-repository", "model-store")
OFF = "disable-auto-complete-config"

_USERS_CHOICE = (OFF, "strict-model-config", "model-config-name", "model-namespacing")
"""The options by which the user decides what is completed, which configuration counts, or what
models are called: with one of them there is no view."""


class View(NamedTuple):
    """A view that exists until this process, or the program that it becomes, has ended."""

    options: tuple[str, ...]
    """The server's options, with the view in place of the user's repositories."""
    environment: Mapping[str, str]
    """The variables that the server needs in addition to its own."""
    left_out: tuple[Path, ...]
    """The entries that the view does not show."""


def local_repositories(options: Sequence[str]) -> list[Path] | None:
    """Return the repositories that the options name; None if one is not on this machine."""
    named = [value for name in REPOSITORY_OPTIONS for value in options_named(options, name)]
    if any("://" in value for value in named):
        return None
    paths = map(Path, named)
    return [path.resolve() if ".." in path.parts else path.absolute() for path in paths]


def reads_once(options: Sequence[str]) -> bool:
    """Whether a server with these options reads its repositories at its start and never again."""
    return (option(options, "model-control-mode") or "none") == "none"


def make_view(
    options: Sequence[str], served: Sequence[str], leaves_out: Callable[[Path], bool]
) -> View | None:
    """Make a view of the repositories in ``options``.

    ``served``: Brisk's backend names. ``leaves_out``: whether to leave out an entry, by its
    directory.

    None if the options decide about completion themselves, the server reads its repositories more
    than once, or a repository is no directory or inside another. Raises InvalidConfigurationError
    if an entry, a repository or an option does not allow a view, OSError if it cannot be written.
    """
    if not reads_once(options) or any(option(options, name) is not None for name in _USERS_CHOICE):
        return None
    repositories = local_repositories(options)
    if repositories is None:
        raise InvalidConfigurationError("a repository is not on this machine")
    if not all(path.is_dir() for path in repositories) or any(
        one.is_relative_to(other) for one in repositories for other in repositories if one != other
    ):
        return None
    batch = default_max_batch_size([os.fsencode(each) for each in options])
    root, lock = make_root(runtime_directory() / "views")
    with contextlib.ExitStack() as unless_shown:
        unless_shown.callback(os.close, lock)
        unless_shown.callback(shutil.rmtree, root, ignore_errors=True)
        shown = show(root, repositories, served, leaves_out, batch)
        if shown.lost:
            entry, why = min(shown.lost.items())
            raise InvalidConfigurationError(f"'{entry}' relies on Triton's completion: {why}")
        os.set_inheritable(lock, True)  # the server holds it
        unless_shown.pop_all()
    places = [f"--model-repository={place_of(path, shown.place)}" for path in repositories]
    return View(
        options=(*without_options(options, REPOSITORY_OPTIONS), *places, f"--{OFF}"),
        environment={VIEW_VARIABLE: str(shown.place)},
        left_out=shown.left_out,
    )


# The devices whose runtimes a server's entries will certainly need.

A_GPU = Path("/dev/nvidia0")


def expected_devices(repositories: Sequence[Path], served: Sequence[str]) -> list[str]:
    """Return the devices (``cpu``, ``cuda:0``, …) of Brisk's entries, each once. ``served``:
    Brisk's backend names.

    An entry without a device runs on the processor if there is no GPU. Else Triton decides, so
    none is returned for it, and its stub starts the runtime.
    """
    groups = [
        config.instance_group
        for repository in repositories
        for config in entries_of(repository, served)
    ]
    return sorted({device for each in groups for device in _devices(each)})


def _devices(groups: Sequence[Any]) -> Iterator[str]:
    is_cpu_alone = not A_GPU.exists()
    if not groups and is_cpu_alone:
        yield "cpu"
    for group in groups:
        if group.kind == group.KIND_CPU or (group.kind == group.KIND_AUTO and is_cpu_alone):
            yield "cpu"
        elif group.kind == group.KIND_GPU:
            yield from (f"cuda:{gpu}" for gpu in group.gpus)
