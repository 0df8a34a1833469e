"""Versions of a model's caches: published atomically, and taken back."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from brisk.exits.artefact import caches_file, digest_of, read_cascade, write_cascade
from brisk.exits.cascade import Cascade

PREVIOUS = ".caches-previous"


def previous_file(model_file: Path) -> Path:
    """Where the version before the one that is served lies."""
    return model_file.with_suffix(PREVIOUS)


def publish(model_file: Path, cascade: Cascade) -> None:
    """Put ``cascade`` in the place of the caches beside ``model_file``, keeping those before.

    Whoever is killed here leaves the old version, or the whole new one; what a killed publisher
    left unfinished is removed.
    """
    path, previous = caches_file(model_file), previous_file(model_file)
    for left in path.parent.glob(f".{path.name}.*.unfinished"):
        left.unlink(missing_ok=True)
    if path.exists():
        linked = previous.with_suffix(f"{PREVIOUS}.{os.getpid()}")
        linked.unlink(missing_ok=True)
        os.link(path, linked)
        linked.replace(previous)
        linked.unlink(missing_ok=True)  # a rename does nothing where both are the same file
    write_cascade(path, cascade)


def roll_back(model_file: Path) -> Cascade | None:
    """Publish the version before the last one again, as a new revision; None without one.

    Raises DamagedFileError where it is not whole or of another model.
    """
    path, previous = caches_file(model_file), previous_file(model_file)
    if not previous.exists():
        return None
    digest = digest_of(model_file)
    before = read_cascade(previous, digest)
    served = read_cascade(path, digest)
    restored = dataclasses.replace(before, revision=served.revision + 1)
    write_cascade(path, restored)
    with contextlib.suppress(FileNotFoundError):
        previous.unlink()
    return restored
