"""The cache directory: artefacts and the assembled backend directory are kept there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from brisk.doctor.base import Deployment, Finding, Verdict

NAME = "cache"
WANTED_BYTES = 2**30


def look(deployment: Deployment) -> Iterator[Finding]:
    directory = _directory(deployment)
    present = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(present, os.W_OK | os.X_OK):
        yield Finding(
            NAME,
            Verdict.ADVICE,
            f"{directory} cannot be written",
            "nothing is kept between starts: every start reads and prepares each model again",
            "BRISK_CACHE_DIR=<a writable directory>; in a container, a volume",
        )
        return
    status = os.statvfs(present)
    free = status.f_frsize * status.f_bavail
    found = f"{directory}, {free / 2**30:.1f} GiB free"
    if free >= WANTED_BYTES:
        yield Finding(NAME, Verdict.GOOD, found)
        return
    yield Finding(
        NAME,
        Verdict.ADVICE,
        found,
        "a model whose artefact finds no room starts as slowly as the first time",
        "make room: an artefact takes about as much as its model",
    )


def _directory(deployment: Deployment) -> Path:
    environment = deployment.environment
    if chosen := environment.get("BRISK_CACHE_DIR"):
        return Path(chosen).absolute()
    home = Path(environment.get("HOME") or Path.home())
    return Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "brisk"
