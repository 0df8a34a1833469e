"""Whether a server can do without Triton's auto-completion, and its command line if so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brisk.protocol.entry_files import VIEW_VARIABLE
from brisk.protocol.runtime_paths import base_directory
from brisk.triton.options import option, options_named, without_options
from brisk.view.entry_text import entries_of, last
from brisk.view.keeper import ViewRoot, keep, make_root, start_apart
from brisk.view.mirror import Mirror

REPOSITORY_OPTIONS = ("model-repository", "model-store")
OFF = "disable-auto-complete-config"

_USERS_CHOICE = {
    OFF: "auto-completion is switched off already",
    "strict-model-config": "--strict-model-config says what is to be completed",
    "model-config-name": "--model-config-name chooses among configurations",
    "model-namespacing": "--model-namespacing names models by their repository's path",
}
"""Options with which Triton reads the repositories itself, and why."""

_LONGEST_PERIOD_S = 2.0


class View(NamedTuple):
    """A view on disk that nobody keeps up yet. ``options``: the server's, with it."""

    mirror: Mirror
    root: ViewRoot
    options: tuple[str, ...]
    environment: Mapping[str, str]
    period_s: float | None


class NoView(NamedTuple):
    """``reason``: why Triton reads the repositories itself. ``is_loss``: whether that costs
    every load of an entry of Brisk's a second that the user could save."""

    reason: str
    is_loss: bool


def local_repositories(options: Sequence[str]) -> list[Path] | None:
    """Those that the options name; None where one is not on this machine."""
    named = [value for name in REPOSITORY_OPTIONS for value in options_named(options, name)]
    if any("://" in value for value in named):
        return None
    paths = map(Path, named)
    return [path.resolve() if ".." in path.parts else path.absolute() for path in paths]


def make_view(
    options: Sequence[str], served: Sequence[str], *, is_wanted: bool = True
) -> View | NoView:
    """Of the repositories in ``options``. ``served``: the backends that are Brisk. ``is_wanted``:
    the user asks for it, also in explicit mode, where a load may come before the view's refresh.

    Raises OSError where it cannot be made.
    """
    for name, reason in _USERS_CHOICE.items():
        if option(options, name) is not None:
            return NoView(reason, False)
    if not is_wanted and option(options, "model-control-mode") == "explicit":
        return NoView("loads in explicit mode see each change at once", False)
    repositories = local_repositories(options)
    if repositories is None:
        return NoView("a repository is not on this machine", True)
    if unfit := _unfit(repositories):
        return NoView(unfit, False)
    root = make_root(base_directory() / "views")
    try:
        mirror = Mirror(root.directory, repositories, served)
        mirror.refresh()
        lost = mirror.lost()
    except BaseException:
        _discard(root)
        raise
    if lost:
        _discard(root)
        entry, why = sorted(lost.items())[0]
        return NoView(f"'{entry}' relies on Triton's: {why}", True)
    shown = [f"--model-repository={mirror.place_of(path)}" for path in repositories]
    return View(
        mirror,
        root,
        (*without_options(options, REPOSITORY_OPTIONS), *shown, f"--{OFF}"),
        {VIEW_VARIABLE: str(mirror.shown)},
        _period_s(options),
    )


def keep_view(view: View) -> None:
    """Keep it up until this process, whatever program it becomes, has ended.

    Raises OSError, and discards the view, where the kernel has no process descriptors.
    """
    try:
        os.set_inheritable(view.root.lock, True)  # the server holds it, whatever ends the keeper
        server = os.pidfd_open(os.getpid())
        try:
            start_apart(lambda: keep(view.mirror, view.root, server, view.period_s))
        finally:
            os.close(server)
    except BaseException:
        _discard(view.root)
        raise


def _discard(root: ViewRoot) -> None:
    shutil.rmtree(root.directory, ignore_errors=True)
    os.close(root.lock)


def _unfit(repositories: Sequence[Path]) -> str | None:
    """Why there is no place for them in a view; one that is none is reported by Triton."""
    for path in repositories:
        if not path.is_dir():
            return f"'{path}' is no directory"
    for one in repositories:
        for other in repositories:
            if one != other and one.is_relative_to(other):
                return f"repository '{one}' lies in repository '{other}'"
    return None


def _period_s(options: Sequence[str]) -> float | None:
    mode = option(options, "model-control-mode") or "none"
    if mode == "none":
        return None
    if mode != "poll":
        return _LONGEST_PERIOD_S
    try:
        poll_s = float(option(options, "repository-poll-secs") or 15)
    except ValueError:
        return _LONGEST_PERIOD_S
    return max(0.05, min(_LONGEST_PERIOD_S, poll_s / 3))


# The devices whose runtimes a server's entries will ask for, as far as that is sure.

_A_GPU = Path("/dev/nvidia0")


def expected_devices(repositories: Sequence[Path], served: Sequence[str]) -> list[str]:
    """``cpu``, ``cuda:0``, …, each once. ``served``: the backends that are Brisk.

    An entry that does not say where it runs is on the processor where there is no GPU; else
    Triton decides, and its stub starts the runtime.
    """
    found: dict[str, None] = {}
    for repository in repositories:
        for message in entries_of(repository, served):
            found.update(dict.fromkeys(_devices(message.get("instance_group", []))))
    return sorted(found)


def _devices(groups: Sequence[Any]) -> Iterator[str]:
    if not groups and not _A_GPU.exists():
        yield "cpu"
    for group in groups:
        if not isinstance(group, dict):
            continue
        kind = last(group, "kind")
        if kind == "KIND_CPU" or (kind in (None, "KIND_AUTO") and not _A_GPU.exists()):
            yield "cpu"
        elif kind == "KIND_GPU":
            yield from (f"cuda:{gpu}" for gpu in group.get("gpus", []) if isinstance(gpu, int))
