"""What a measurement is of: the command that was given, when, and the commit of the checkout."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

MEASURED = ("triton_backend", "client", "model_repository")
"""Folders of a checkout whose state decides what a benchmark measures."""

OUTPUTS = ("--json", "--plot")
"""Options that say where a report goes, which is no part of what was measured."""

_GIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Provenance:
    """``command`` as it can be repeated; ``date`` in UTC, ISO 8601; ``commit`` None without git.

    ``dirty``: whether `MEASURED` differed from the commit; None where there is no commit.
    """

    command: str
    date: str
    commit: str | None
    dirty: bool | None

    @staticmethod
    def of(name: str, arguments: Sequence[str]) -> Provenance:
        """Of ``brisk bench name arguments`` now: called before the measurement begins."""
        commit, dirty = checkout(Path(__file__).resolve())
        date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Provenance(command_line(name, arguments), date, commit, dirty)


def command_line(name: str, arguments: Sequence[str]) -> str:
    """The command without `OUTPUTS`; of absolute paths the last component only."""
    words: list[str] = []
    remaining = iter(arguments)
    for word in remaining:
        option, equals, value = word.partition("=")
        if option in OUTPUTS:
            if not equals:
                next(remaining, None)
        elif equals and value.startswith("/"):
            words.append(f"{option}={Path(value).name}")
        else:
            words.append(Path(word).name if word.startswith("/") else word)
    return shlex.join(["brisk", "bench", name, *words])


def checkout(file: Path) -> tuple[str | None, bool | None]:
    """Commit of the checkout that tracks ``file``, and whether `MEASURED` differs from it.

    (None, None) without git, and for a file that a checkout merely contains, such as one of an
    environment inside of it.
    """
    folder = file.parent
    if _git(folder, "ls-files", "--error-unmatch", str(file)) is None:
        return None, None
    top, commit = _git(folder, "rev-parse", "--show-toplevel"), _git(folder, "rev-parse", "HEAD")
    if top is None or commit is None:
        return None, None
    there = [name for name in MEASURED if (Path(top) / name).exists()]
    state = _git(Path(top), "status", "--porcelain", "--", *(there or ["."]))
    return commit, None if state is None else bool(state)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_GIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
