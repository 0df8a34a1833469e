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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from brisk.ownership import make_private
from brisk.paths import listed
from brisk.protocol.entry_files import CONFIG_FILE, REMOTE_FILE
from brisk.stub.config.completion import DEFAULT_MAX_BATCH_SIZE
from brisk.view.entry_text import AS_IT_IS, EntryText, entry_text

MOST_AT_ONCE = 128
"""The most entries whose models are asked for at the same time."""


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
    for repository in repositories:
        place_of(repository, shown).mkdir(mode=0o700, parents=True, exist_ok=True)
    users = [user for repository in repositories for user in sorted(listed(repository))]
    left_out = tuple(filter(leaves_out, users))
    shown_users = [user for user in users if user not in left_out]
    for user, entry in zip(shown_users, _texts(shown_users, served, batch), strict=True):
        _show_entry(user, place_of(user, shown), entry.text)
        if entry.lost:
            lost[user] = entry.lost
    return Shown(shown, lost, left_out)


def _texts(users: Sequence[Path], served: Sequence[str], batch: int) -> Iterator[EntryText]:
    """Yield the text of each entry.

    Those whose models lie elsewhere are made at the same time: each may wait as long as its URL is
    asked for.
    """

    def text(user: Path) -> EntryText:
        return entry_text(user, served, batch) if os.path.isdir(user) else AS_IT_IS

    remote = [user for user in users if any(user.glob(f"*/{REMOTE_FILE}"))]
    if len(remote) < 2:
        yield from map(text, users)
        return
    from concurrent.futures import ThreadPoolExecutor  # imported where several wait

    pool = ThreadPoolExecutor(min(len(remote), MOST_AT_ONCE))
    try:
        made = {user: pool.submit(text, user) for user in remote}
        for user in users:
            yield made[user].result() if user in made else text(user)
    finally:  # whoever presses Ctrl-C waits for no URL
        pool.shutdown(wait=False, cancel_futures=True)


def _show_entry(user: Path, place: Path, text: str | None) -> None:
    """Write an entry of the view, with ``text`` for its configuration; None: as it is."""
    if text is None:
        place.symlink_to(user)
        return
    place.mkdir(mode=0o700)
    for file in listed(user):
        if file.name != CONFIG_FILE:
            (place / file.name).symlink_to(file)
    (place / CONFIG_FILE).write_text(text, "utf-8", "surrogateescape")
