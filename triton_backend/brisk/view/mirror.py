"""The directories of a view, made from the user's repositories.

Layout of ``<root>``, which is private to the user::

    lock                    held by the server, and so by what it started, as long as it lives
    shown/<repository>/     one for each repository, by its absolute path: a link for each entry
    completed/              what links of completed entries lead to

What Brisk completes is a directory in ``completed``, its ``config.pbtxt`` a link to a file beside
it, all else in it links to the user's files. All other links lead to what the user has.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from brisk.protocol.entry_files import CONFIG_FILE, PIPELINE_FILE
from brisk.view.entry_text import (
    AS_IT_IS,
    EntryText,
    config_text,
    entry_text,
    is_unwritten,
    listed,
)
from brisk.view.kernel_events import DirectoryWatch, GeneratedConfig

USER_CONFIG = ".config.pbtxt.as-written"
"""In an entry whose configuration is leased: a link to the user's, whose time Triton sees."""

_SETTLED_NS = 100_000_000
"""A file that was changed so recently may be changed again without its time telling so."""

_EXPECTED = EntryText("", None)

Stamp = tuple[object, ...]


@dataclass(slots=True)
class _ShownEntry:
    """``stamp``: of what was read, None where it must be read again. ``lost``: as EntryText has
    it. ``links``: of its directory, ``folder``, where it is completed."""

    stamp: Stamp | None = None
    lost: str | None = None
    config: GeneratedConfig | None = None
    links: Mapping[str, Path] = field(default_factory=dict)
    folder: Path | None = None


class Mirror:
    """Not for use by several threads, nor by two processes at once."""

    def __init__(
        self,
        root: Path,
        repositories: Sequence[Path],
        served: Sequence[str],
        watch: DirectoryWatch | None = None,
    ) -> None:
        """``root`` exists; ``repositories``: absolute; ``served``: backends that are Brisk.

        ``watch``: of the process that keeps the view up. It leases configurations, and shows an
        entry of which nothing is known yet, too, so that who reads its configuration waits.
        """
        self._served = served
        self._repositories = repositories
        self._completed = root / "completed"
        self._watch = watch
        self._number = 0
        self._entries: dict[Path, _ShownEntry] = {}
        self.shown = root / "shown"

    def place_of(self, user: Path) -> Path:
        """Where the view has what the user has at ``user``."""
        return self.shown / user.relative_to("/")

    def lost(self) -> dict[Path, str]:
        """Entries for which Triton's own completion would do more, and what."""
        return {user: entry.lost for user, entry in self._entries.items() if entry.lost}

    def refresh(self) -> None:
        """Bring all up to date."""
        self._completed.mkdir(mode=0o700, exist_ok=True)
        for repository in self._repositories:
            if self._watch is not None:
                self._watch.add(repository)
            place = self.place_of(repository)
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in {path.name for path in (*listed(repository), *listed(place))}:
                self._refresh_entry(repository / name)

    def take_changes(self) -> None:
        """Bring up to date what the kernel says has changed. Precondition: there is a watch."""
        assert self._watch is not None
        entries = {
            repository / path.relative_to(repository).parts[0]
            for path in self._watch.changed()
            for repository in self._repositories
            if repository in path.parents
        }
        # New ones first: somebody may ask for them any moment, and those known can be waited for.
        for user in sorted(entries, key=lambda user: user in self._entries):
            self._refresh_entry(user)

    def serve_readers(self) -> None:
        """Let those read who wait for a leased configuration, after it is up to date."""
        for user, entry in list(self._entries.items()):
            if entry.config is None or not entry.config.is_awaited:
                continue
            try:
                entry.stamp = None
                self._refresh_entry(user)
            finally:
                if entry.config is not None:
                    entry.config.release()
            # The next reader shall wait again: for another file, as this one is being read.
            if entry.config is not None:
                self._write(user, entry, entry.config.text)

    def _refresh_entry(self, user: Path) -> None:
        """Bring up to date what the view has of ``user``, which lies in a repository."""
        if self._watch is not None:  # first, so that nothing is missed between
            for directory in (user, *_versions(user)):
                self._watch.add(directory)
        stamp = _stamp(user)
        entry = self._entries.setdefault(user, _ShownEntry())
        if stamp is not None and entry.stamp == stamp:
            return
        entry.stamp = None
        if not os.path.lexists(user):
            self.place_of(user).unlink(missing_ok=True)
            self._forget_completion(user, entry)
            del self._entries[user]
            return
        text, entry.lost = self._read(user)
        if text is None:
            if not self._is_linked(user):
                self._link(user, user)
            self._forget_completion(user, entry)
        else:
            if entry.config is not None and entry.config.is_awaited:
                entry.config.rewrite(text)
            elif entry.config is None or entry.config.text != text:
                self._write(user, entry, text)
            self._show(user, entry)
        entry.stamp = stamp

    def _read(self, user: Path) -> EntryText:
        try:
            if not user.is_dir():
                return AS_IT_IS
            found = entry_text(user, self._served)
            is_expected = self._watch is not None and found.text is None and is_unwritten(user)
        except OSError:  # it goes while it is read; the next look will tell
            return AS_IT_IS
        # Who reads an entry that is just being written waits for the next look.
        return _EXPECTED if is_expected and not self._is_linked(user) else found

    def _is_linked(self, user: Path) -> bool:
        """Whether readers have been shown the entry as it is."""
        place = self.place_of(user)
        return place.is_symlink() and Path(os.readlink(place)) == user

    def _show(self, user: Path, entry: _ShownEntry) -> None:
        """A directory of links to the user's files and to the configuration."""
        assert entry.config is not None
        links = {path.name: path for path in listed(user)}
        written = links.get(CONFIG_FILE)
        links[CONFIG_FILE] = self._config(user)
        if entry.config.is_leased and written is not None:
            links[USER_CONFIG] = written
        if links == entry.links:
            return
        old, entry.folder, entry.links = entry.folder, self._draft(), links
        entry.folder.mkdir(mode=0o700)
        for name, target in links.items():
            (entry.folder / name).symlink_to(target)
        self._link(user, entry.folder)
        if old is not None:
            shutil.rmtree(old)

    def _link(self, user: Path, target: Path) -> None:
        """Show ``target`` as the entry, with no gap: a reader finds the old or the new one."""
        draft = self._draft()
        draft.symlink_to(target)
        draft.replace(self.place_of(user))

    def _config(self, user: Path) -> Path:
        name = hashlib.sha256(os.fsencode(user)).hexdigest()[:32]
        return self._completed / f"{name}.pbtxt"

    def _write(self, user: Path, entry: _ShownEntry, text: str) -> None:
        """Another file, with no gap. Its time tells Triton of a change where it is not leased;
        else the user's own does (USER_CONFIG)."""
        draft = self._draft()
        old, entry.config = (
            entry.config,
            GeneratedConfig(draft, text, lease=self._watch is not None),
        )
        draft.replace(self._config(user))
        if old is not None:
            old.release()

    def _forget_completion(self, user: Path, entry: _ShownEntry) -> None:
        """The entry is read as it is from now on: so by who waits for its configuration, too."""
        if entry.config is not None:
            if entry.config.is_awaited:
                with contextlib.suppress(OSError):
                    entry.config.rewrite(config_text(user) or "")
            entry.config.release()
            self._config(user).unlink(missing_ok=True)
        if entry.folder is not None:
            shutil.rmtree(entry.folder)
        entry.config, entry.folder, entry.links = None, None, {}

    def _draft(self) -> Path:
        """A name that nothing in ``completed`` has had."""
        self._number += 1
        return self._completed / f"{os.getpid()}-{self._number}"


def _versions(user: Path) -> list[Path]:
    return [path for path in listed(user) if path.name.isdecimal()]


def _stamp(user: Path) -> Stamp | None:
    """What changes with the entry; None where that cannot be told: it changed just now, or it is
    a pipeline, which may use other entries' files."""
    places = [user, *listed(user), *(file for each in _versions(user) for file in listed(each))]
    found: list[object] = []
    newest_ns = 0
    for place in sorted(places):
        if place.name == PIPELINE_FILE:
            return None
        try:
            status = place.stat()
        except OSError as error:
            found.append((place, error.errno))
            continue
        newest_ns = max(newest_ns, status.st_mtime_ns, status.st_ctime_ns)
        found.append((place, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found) if abs(time.time_ns() - newest_ns) > _SETTLED_NS else None
