"""Published runs as they are read from `docs/benchmarks/data`.

A file is what ``brisk bench NAME --json FILE`` writes. One that has ``"source": "reported"`` holds
measurements of others: its machine and versions may be empty, it needs no commit, and its notes
say whose it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from brisk_bench.harness.report import Check, Report

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


@dataclass
class PublishedRun(Report):
    """One run; ``file`` is the name of its file without ``.json``.

    ``commit``, ``command``, ``date`` may be empty if it was not measured but reported.
    """

    file: str = ""
    is_reported: bool = False


def read_runs(folder: Path) -> dict[str, PublishedRun]:
    """Read all runs of the folder, by their files' names. Raises UnusableRunError."""
    return {file.stem: read_run(file) for file in sorted(folder.glob("*.json"))}


def read_run(file: Path) -> PublishedRun:
    """Read a run. Raises UnusableRunError if it lacks fields that a published run needs."""

    def require(condition: bool, message: str) -> None:
        if not condition:
            raise UnusableRunError(f"{file.name}: {message}")

    def check(place: int, found: Any) -> Check:
        try:
            read = Check(found["name"], found["value"], found["expected"], found["ok"])
        except (TypeError, KeyError) as error:
            raise UnusableRunError(f"{file.name}: check {place} lacks {error}") from error
        require(isinstance(read.ok, bool), f"'{read.name}': ok is neither true nor false")
        return read

    try:
        text = file.read_text()
        document = json.loads(text)
    except (OSError, ValueError) as error:
        raise UnusableRunError(f"{file.name}: {error}") from error
    require(isinstance(document, dict), "a report is an object")
    source = document.get("source", "")
    require(source in ("", REPORTED), f"source is '{source}', known is '{REPORTED}'")
    is_reported = source == REPORTED
    for name, kind in {**_REQUIRED, **({} if is_reported else _MEASURED)}.items():
        require(isinstance(document.get(name), kind), f"{name} must be of type {kind.__name__}")
    require(bool(document["rows"] or document["checks"]), "neither rows nor checks")
    if is_reported:
        require(bool(document["notes"]), "notes must say who reported this")
    else:
        require(bool(document["machine"]), "machine is empty")
        require(bool(document["versions"]), "versions are empty")
        require(bool(_COMMIT.fullmatch(document["commit"])), "commit is no full digest")
    if place := _PLACE.search(text):
        raise UnusableRunError(f"{file.name}: names a place of one machine: {place[0]}")
    known = [field.name for field in fields(Report)]
    told = {name: document[name] for name in known if document.get(name) is not None}
    told["checks"] = [check(place, each) for place, each in enumerate(document["checks"])]
    return PublishedRun(**told, file=file.stem, is_reported=is_reported)
