"""The cache directory: artefacts and the assembled backend directory are kept there."""

from __future__ import annotations

import os
from collections.abc import Iterator

from brisk.artefacts.place import cache_directory
from brisk.doctor.base import Deployment, Finding, Severity
from brisk.ownership import check_directory

NAME = "cache"
WANTED_BYTES = 2**30


def look(deployment: Deployment) -> Iterator[Finding]:
    directory = cache_directory(deployment.environment).absolute()
    present = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(present, os.W_OK | os.X_OK):
        yield Finding(
            NAME,
            Severity.ADVICE,
            f"{directory} cannot be written",
            "nothing is kept between starts: every start reads and prepares each model again",
            "BRISK_CACHE_DIR=<a writable directory>; in a container, a volume",
        )
        return
    try:
        check_directory(present)
    except PermissionError as error:
        yield Finding(
            NAME,
            Severity.ADVICE,
            str(error),
            "nothing in it is used: who may write there decides what code runs",
            "BRISK_CACHE_DIR=<a directory of the server's user alone>",
        )
        return
    status = os.statvfs(present)
    free = status.f_frsize * status.f_bavail
    found = f"{directory}, {free / 2**30:.1f} GiB free"
    if free >= WANTED_BYTES:
        yield Finding(NAME, Severity.GOOD, found)
        return
    yield Finding(
        NAME,
        Severity.ADVICE,
        found,
        "a model whose artefact finds no room starts as slowly as the first time",
        "make room: an artefact takes about as much as its model",
    )
