"""Published runs as they are read from `docs/benchmarks/data`.

A file is what ``brisk bench NAME --json FILE`` writes. One that has ``"source": "reported"`` holds
what somebody else measured: its machine and versions may be empty, it needs no commit, and its
notes say whose it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPORTED = "reported"

_REQUIRED: dict[str, type] = {
    "name": str,
    "machine": dict,
    "versions": dict,
    "rows": list,
    "checks": list,
    "notes": list,
}
_MEASURED: dict[str, type] = {"command": str, "date": str, "commit": str, "dirty": bool}
_PLACE = re.compile(r"(?<![\w.])/(?:work|home|root|tmp|mnt|opt|srv|Users)/\S+")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class UnusableRunError(Exception):
    """A published file, or what pages ask of it, is not as it must be; the message says how."""


@dataclass(frozen=True, slots=True)
class PublishedCheck:
    """One expectation of a run, as it was written."""

    name: str
    value: Any
    expected: Any
    ok: bool


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One run; ``file`` is the name of its file without ``.json``.

    ``commit``, ``command``, ``date`` are empty where the run was not measured but reported.
    """

    file: str
    name: str
    command: str
    date: str
    commit: str
    dirty: bool
    is_reported: bool
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]
    checks: Sequence[PublishedCheck]
    notes: Sequence[str]


def read_runs(folder: Path) -> dict[str, PublishedRun]:
    """All runs of the folder by their files' names. Raises UnusableRunError."""
    return {file.stem: read_run(file) for file in sorted(folder.glob("*.json"))}


def read_run(file: Path) -> PublishedRun:
    """Raises UnusableRunError for what has not the fields that a published run needs."""
    try:
        text = file.read_text()
        document = json.loads(text)
    except (OSError, ValueError) as error:
        raise UnusableRunError(f"{file.name}: {error}") from error
    if not isinstance(document, dict):
        raise UnusableRunError(f"{file.name}: a report is an object")
    source = document.get("source", "")
    if source not in ("", REPORTED):
        raise UnusableRunError(f"{file.name}: source is '{source}', known is '{REPORTED}'")
    is_reported = source == REPORTED
    for field, kind in {**_REQUIRED, **({} if is_reported else _MEASURED)}.items():
        if not isinstance(document.get(field), kind):
            raise UnusableRunError(f"{file.name}: {field} must be of type {kind.__name__}")
    _require(file, bool(document["rows"] or document["checks"]), "neither rows nor checks")
    if is_reported:
        _require(file, bool(document["notes"]), "notes must say who reported this")
    else:
        _require(file, bool(document["machine"]), "machine is empty")
        _require(file, bool(document["versions"]), "versions are empty")
        _require(file, bool(_COMMIT.fullmatch(document["commit"])), "commit is no full digest")
        resumed = "--resume" in document["command"].split()
        _require(file, not resumed, "a resumed run may be of several commits")
    if place := _PLACE.search(text):
        raise UnusableRunError(f"{file.name}: names a place of one machine: {place[0]}")
    return PublishedRun(
        file=file.stem,
        name=document["name"],
        command=document.get("command") or "",
        date=document.get("date") or "",
        commit=document.get("commit") or "",
        dirty=bool(document.get("dirty")),
        is_reported=is_reported,
        machine=document["machine"],
        versions=document["versions"],
        rows=document["rows"],
        checks=[_check(file, number, each) for number, each in enumerate(document["checks"])],
        notes=document["notes"],
    )


def _check(file: Path, number: int, found: Any) -> PublishedCheck:
    try:
        check = PublishedCheck(found["name"], found["value"], found["expected"], found["ok"])
    except (TypeError, KeyError) as error:
        raise UnusableRunError(f"{file.name}: check {number} lacks {error}") from error
    _require(file, isinstance(check.ok, bool), f"'{check.name}': ok is neither true nor false")
    return check


def _require(file: Path, condition: bool, message: str) -> None:
    if not condition:
        raise UnusableRunError(f"{file.name}: {message}")
