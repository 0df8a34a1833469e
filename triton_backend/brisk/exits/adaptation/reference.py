"""The original data that retraining is mixed with and judged by, in a file next to the caches.

It holds inputs of the training data, which may be private: the file is readable by its owner only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.exits.data.samples import Division, Samples
from brisk.exits.files.container import DamagedFileError, read_container, write_container
from brisk.exits.sources import BLOCK_ROWS, marks

MODE = 0o600
MOST_ROWS = 600
"""The most rows of each part; a proof of 97 % takes 99 answers at least, one of 99 % takes 299."""

MOST_BYTES = 32 << 20
LEARNED = "learned"


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceData:
    """Some of the data that caches were made with."""

    model_digest: str
    fit: Samples
    """Rows that trained the caches."""
    select: Samples
    """Rows that tuned the caches."""
    held_out: Samples
    """Rows that proved the caches."""
    learned: np.ndarray
    """Marks (``brisk.exits.sources``) of every row that trained or tuned the caches, also of those
    that are not stored."""


def write_reference(
    path: Path,
    model_digest: str,
    samples: Samples,
    division: Division,
    more: Samples | None = None,
) -> ReferenceData:
    """Write some of the data of training, at most ``MOST_ROWS`` and ``MOST_BYTES``, and of all of
    it the marks by which copies are recognised. ``more``: data that only fitted predictors."""
    row_bytes = sum(array[:1].nbytes for array in samples.inputs.values())
    most = min(MOST_ROWS, MOST_BYTES // max(3 * row_bytes, 1))
    fit, select, held_out = (
        samples.take(rows[:most]) for rows in (division.fit, division.tune, division.calibrate)
    )
    tensors = {
        f"{part}.{name}": array
        for part, rows in (("fit", fit), ("select", select), ("held_out", held_out))
        for name, array in rows.inputs.items()
    }
    trained = np.concatenate([division.fit, division.select, division.tune])
    parts = [*_marks(samples, trained), *([] if more is None else _marks(more, division.more))]
    learned = tensors[LEARNED] = np.concatenate(parts)
    write_container(path, {"model_digest": model_digest}, tensors, MODE)
    return ReferenceData(model_digest, fit, select, held_out, learned)


def _marks(samples: Samples, rows: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), BLOCK_ROWS):
        yield marks(samples.take(rows[start : start + BLOCK_ROWS]).inputs)


def read_reference(path: Path, model_digest: str) -> ReferenceData:
    """Read what ``write_reference`` has written for the model.

    Raises DamagedFileError that says what is wrong, OSError if there is no file.
    """
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
    if learned.shape[1:] != marks(fit.take(slice(0, 1)).inputs).shape[1:]:
        raise DamagedFileError("its marks of rows are of another release; train again")
    return ReferenceData(model_digest, fit, select, held_out, learned)
