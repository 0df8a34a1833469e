"""The directories of a view, made from the user's repositories.

Layout of ``<root>``, which is private to the user::

    lock                    held by the server, and by processes that inherit it, while they live
    shown/<repository>/     one for each repository, by its absolute path, with one name per entry

An entry that Brisk completes is a directory with its own ``config.pbtxt``, and links to the user's
other files. Every other entry is a link to the user's entry.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from brisk.ownership import make_private
from brisk.protocol.entry_files import CONFIG_FILE, listed
from brisk.stub.config.completion import DEFAULT_MAX_BATCH_SIZE
from brisk.view.entry_text import AS_IT_IS, entry_text


class Shown(NamedTuple):
    """The content of a written view."""

    place: Path
    """The view's directory of repositories."""
    lost: dict[Path, str]
    """The entries for which Triton's own completion would do more, and what."""
    left_out: tuple[Path, ...]
    """The entries that the view does not show."""


def make_root(base: Path) -> tuple[Path, int]:
    """Make a view's directory under ``base``, after removing those of ended servers.

    Return it with the descriptor of its lock: while a process holds it, the view is not removed.
    Raises OSError, PermissionError if other users could change the content of ``base``.
    """
    make_private(base)
    with open(base / "lock", "a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for old in base.iterdir():
            with contextlib.suppress(OSError):  # its server lives, or it is no view
                os.close(_lock(old))
                shutil.rmtree(old, ignore_errors=True)
        directory = Path(tempfile.mkdtemp(dir=base))
        return directory, _lock(directory)


def _lock(directory: Path) -> int:
    """Take the directory's lock and return its descriptor. Raises BlockingIOError if another
    process holds it."""
    descriptor = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def place_of(user: Path, shown: Path) -> Path:
    """Return the path in the view of the user's file or directory at ``user``."""
    return shown / user.relative_to("/")


def show(
    root: Path,
    repositories: Sequence[Path],
    served: Sequence[str],
    leaves_out: Callable[[Path], bool],
    batch: int = DEFAULT_MAX_BATCH_SIZE,
) -> Shown:
    """Write the view of ``repositories`` into ``root``, which ``make_root`` has made.

    ``repositories``: absolute paths. ``served``: Brisk's backend names. ``leaves_out``: whether to
    leave out an entry. ``batch`` as in ``entry_text``. Raises OSError.
    """
    shown = root / "shown"
    lost: dict[Path, str] = {}
    left_out = []
    for repository in repositories:
        place_of(repository, shown).mkdir(mode=0o700, parents=True, exist_ok=True)
        for user in sorted(listed(repository)):
            if leaves_out(user):
                left_out.append(user)
            elif reason := _show_entry(user, place_of(user, shown), served, batch):
                lost[user] = reason
    return Shown(shown, lost, tuple(left_out))


def _show_entry(user: Path, place: Path, served: Sequence[str], batch: int) -> str | None:
    """Write an entry of the view. Return what Triton's completion would do beyond Brisk's, else
    None."""
    text, lost = entry_text(user, served, batch) if user.is_dir() else AS_IT_IS
    if text is None:
        place.symlink_to(user)
        return lost
    place.mkdir(mode=0o700)
    for file in listed(user):
        if file.name != CONFIG_FILE:
            (place / file.name).symlink_to(file)
    (place / CONFIG_FILE).write_text(text, "utf-8", "surrogateescape")
    return lost
