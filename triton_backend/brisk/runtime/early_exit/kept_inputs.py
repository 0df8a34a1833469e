"""Inputs of requests that are kept on disk, and how they go.

They are kept to learn from (``brisk.exits.files.versions``). They go once nothing is learned from
them any more, once their model is gone, or by ``brisk cache clear``. What was learned from them
stays, but for that of models that are gone.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from brisk.artefacts.store import FOR_ALL_MACHINES, locked
from brisk.exits.files.learning_record import LOCK
from brisk.exits.files.versions import (
    OF_MODEL,
    SAMPLES,
    TRAINING,
    note_use,
    private_folder,
    private_folders,
    training_folders,
)
from brisk.runtime.log import LOGGER

ABANDONED_S = 7 * 24 * 3600.0
"""The time without use after which the folder of a model that is gone is removed. Until then it
may be another container's, which shares the cache, or on a disk that is not mounted now."""


def delete_inputs(model: Path) -> None:
    """Delete the samples of ``model``, and what a process that was killed has made of them, unless
    another one learns from them now. Raises OSError."""
    folder = private_folder(model)
    if folder.is_dir():
        _cleared(folder, math.inf)


def clear_inputs(before_s: float) -> int:
    """Delete all models' samples, and what killed processes and interrupted trainings have made of
    data, not changed since ``before_s``; leave what is in use. Return the bytes. Raises OSError.
    """
    freed = 0
    for folder in _folders(private_folders()):
        freed += _cleared(folder, before_s)
    for folder in _folders(training_folders()):
        with contextlib.suppress(FileNotFoundError), locked(folder) as is_alone:
            if is_alone:
                freed += _removed(folder, before_s)
    return freed


def remove_abandoned(used: Iterable[Path]) -> None:
    """Remove the private folders of models that are gone, and were not used for ``ABANDONED_S``.

    ``used``: model files that are in use. Raises OSError.
    """
    for model in used:
        note_use(model)
    for folder in _folders(private_folders()):
        try:
            note = folder / OF_MODEL
            idle_s = time.time() - note.stat().st_mtime
            model = Path(os.fsdecode(note.read_bytes()))
        except FileNotFoundError:  # of a version of Brisk that did not note it: a load does
            continue
        if idle_s < ABANDONED_S or not _is_gone(model):
            continue
        with locked(folder / LOCK, FOR_ALL_MACHINES) as is_alone:
            if is_alone:
                _remove(folder)
                LOGGER.info(f"what was learned of {model} is removed: the file is gone")


def _is_gone(model: Path) -> bool:
    try:
        model.stat()
    except (FileNotFoundError, NotADirectoryError):
        return model.is_absolute()
    except (OSError, ValueError):  # a crash of the machine may have left zeros for the path
        return False
    return False


def _folders(parent: Path) -> Iterator[Path]:
    if parent.is_dir():
        yield from sorted(each for each in parent.iterdir() if each.is_dir())


def _cleared(folder: Path, before_s: float) -> int:
    """Delete the inputs in a private folder that were not changed since ``before_s``, unless a
    process learns from them. Return their bytes."""
    freed = 0
    with locked(folder / LOCK, FOR_ALL_MACHINES) as is_alone:
        if is_alone:
            for file in (folder / SAMPLES).glob("*"):
                with contextlib.suppress(FileNotFoundError):
                    status = file.stat()
                    if status.st_mtime <= before_s:
                        file.unlink()
                        freed += status.st_size
            freed += _removed(folder / TRAINING, before_s)
    return freed


def _removed(folder: Path, before_s: float) -> int:
    """Remove a folder if nothing in it was changed since ``before_s``. Return its bytes."""
    if not folder.is_dir():
        return 0
    states = [each.lstat() for each in (folder, *folder.rglob("*"))]
    if max(state.st_mtime for state in states) > before_s:
        return 0
    _remove(folder)
    return sum(state.st_size for state in states)


def _remove(folder: Path) -> None:
    import shutil  # a start does without it

    shutil.rmtree(folder, ignore_errors=True)
