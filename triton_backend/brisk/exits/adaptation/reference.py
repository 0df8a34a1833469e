"""The original data that retraining is mixed with and judged by, kept beside the caches.

It holds inputs of the training data, which may be private: the file is readable by its owner only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.exits.data.samples import Division, Samples
from brisk.exits.files.container import DamagedFileError, read_container, write_container
from brisk.exits.sources import marks

MODE = 0o600
MOST_ROWS = 600
"""Of each part; a proof of 97 % takes 99 answers at least, one of 99 % takes 299."""

MOST_BYTES = 32 << 20
LEARNED = "learned"


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceData:
    """``fit`` has trained the caches, ``select`` has tuned them, ``held_out`` has proved them.

    ``learned``: marks (``brisk.exits.sources``) of every row that has trained or tuned them, kept
    or not.
    """

    model_digest: str
    fit: Samples
    select: Samples
    held_out: Samples
    learned: np.ndarray


def write_reference(
    path: Path,
    model_digest: str,
    samples: Samples,
    division: Division,
    more: Samples | None = None,
) -> ReferenceData:
    """Keep some of what caches were trained with, at most ``MOST_ROWS`` and ``MOST_BYTES``, and of
    all of it what tells copies. ``more``: data that only fitted predictors."""
    row_bytes = sum(array[:1].nbytes for array in samples.inputs.values())
    most = min(MOST_ROWS, MOST_BYTES // max(3 * row_bytes, 1))
    parts = {"fit": division.fit, "select": division.tune, "held_out": division.calibrate}
    kept = {name: samples.take(rows[:most]) for name, rows in parts.items()}
    tensors = {
        f"{part}.{name}": array
        for part, taken in kept.items()
        for name, array in taken.inputs.items()
    }
    trained = np.concatenate([division.fit, division.select, division.tune])
    learned = marks(samples.take(trained).inputs)
    if more is not None:
        learned = np.concatenate([learned, marks(more.take(division.more).inputs)])
    tensors[LEARNED] = learned
    write_container(path, {"model_digest": model_digest}, tensors, MODE)
    return ReferenceData(model_digest, kept["fit"], kept["select"], kept["held_out"], learned)


def read_reference(path: Path, model_digest: str) -> ReferenceData:
    """Raises DamagedFileError in words, OSError where there is no file."""
    container = read_container(path)
    if container.header.get("model_digest") != model_digest:
        raise DamagedFileError("it is of another model; train again")
    parts: dict[str, dict[str, np.ndarray]] = {"fit": {}, "select": {}, "held_out": {}}
    tensors = dict(container.tensors)
    learned = tensors.pop(LEARNED, None)
    for key, array in tensors.items():
        part, _, name = key.partition(".")
        if part not in parts or not name:
            raise DamagedFileError(f"a tensor '{key}' is not expected")
        parts[part][name] = array
    if learned is None or not all(parts.values()):
        raise DamagedFileError("it lacks samples")
    fit, select, held_out = map(Samples, parts.values())
    return ReferenceData(model_digest, fit, select, held_out, learned)
