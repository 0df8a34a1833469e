"""The published runs that stand for the product: full ones, all of one commit.

Anything else is shown with what it lacks, and is in no table of the README or the index.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from publication.runs import PublishedRun
from publication.subjects import page_of

QUICK, DIRTY, OTHER, REPORTED = "quick", "uncommitted changes", "other commit", "reported"
"""Flaws of a run: it was a short one; its tree had uncommitted changes; it was of another state of
the product than the rest; it was not measured by us."""

_FEWER = re.compile(
    r"--(?:rounds|seconds|trial-seconds|interruptions|points|megabytes|receivers|clients"
    r"|transports|batching|entries|engines|sides?|triton-setting|network|no-[a-z-]+)"
)
"""Options by which a run has fewer rounds, shorter ones, or fewer sides or settings than by
default."""


def published_commit(runs: Iterable[PublishedRun]) -> str:
    """Return the commit of most full runs with a page, of several the latest; empty without."""
    full = [run for run in runs if page_of(run.file) is not None and not _own_flaws(run)]
    counts = Counter(run.commit for run in full)
    latest = {run.commit: run.date for run in sorted(full, key=lambda run: run.date)}
    return max(latest, key=lambda commit: (counts[commit], latest[commit]), default="") or ""


def flaws_of(run: PublishedRun, commit: str) -> list[str]:
    """Return what keeps it from being a full run of ``commit``; empty if it is one."""
    return _own_flaws(run) + ([] if run.is_reported or run.commit == commit else [OTHER])


def options_of(run: PublishedRun) -> list[str]:
    """Return the words of the run's command; of an option with its value, as --rounds=3, it
    alone."""
    return [word.partition("=")[0] for word in run.command.split()]


def _own_flaws(run: PublishedRun) -> list[str]:
    if run.is_reported:
        return [REPORTED]
    options = options_of(run)
    fewer = [option for option in options if _FEWER.fullmatch(option)]
    found = {
        QUICK: "--quick" in options,
        f"less than by default ({' '.join(fewer)})": bool(fewer),
        DIRTY: run.dirty,
    }
    return [flaw for flaw, is_so in found.items() if is_so]


def all_flaws(runs: Mapping[str, PublishedRun]) -> dict[str, str]:
    """Return each run's flaws in words, by file; empty for full runs of the published commit."""
    commit = published_commit(runs.values())
    return {file: ", ".join(flaws_of(run, commit)) for file, run in runs.items()}
