"""Hidden outputs and class distributions, by running the base model itself (GATI, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.exits.base_model import BaseModel, run_base
from brisk.exits.data.samples import Samples
from brisk.exits.model_graph import ExitPoint
from brisk.exits.scores import Scores

BATCH_ROWS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """``hidden[i]``: float32 [rows, ...] at the i-th point, mapped from a file.

    ``teacher``: the base model's distribution, float32 [rows, classes].
    """

    hidden: tuple[np.ndarray, ...]
    teacher: np.ndarray


def bind_rows(samples: Samples) -> dict[str, np.ndarray]:
    """The samples as inputs of a frame."""
    return {name: np.ascontiguousarray(array) for name, array in samples.inputs.items()}


def collect(
    base: BaseModel,
    points: Sequence[ExitPoint],
    scores: Scores,
    samples: Samples,
    folder: Path,
    advance: Callable[[int], None] = lambda rows: None,
) -> Collected:
    """Run all samples, writing what is at ``points`` into ``folder``.

    What a complete earlier call has written is read again. ``advance`` is told of rows done.
    """
    files = [folder / f"hidden-{point.position}.npy" for point in points]
    teacher_file = folder / "teacher.npy"
    if teacher_file.exists() and all(file.exists() for file in files):
        advance(len(samples))
    else:
        teacher = _run_all(base, points, scores, samples, files, advance)
        # Written last: it says that all are complete.
        unfinished = teacher_file.with_suffix(".unfinished.npy")
        np.save(unfinished, teacher)
        unfinished.replace(teacher_file)
    hidden = tuple(np.load(file, mmap_mode="r") for file in files)
    return Collected(hidden, np.load(teacher_file))


def _run_all(
    base: BaseModel,
    points: Sequence[ExitPoint],
    scores: Scores,
    samples: Samples,
    files: Sequence[Path],
    advance: Callable[[int], None],
) -> np.ndarray:
    """The distributions; what is at ``points`` is in ``files`` then."""
    writers: list[np.memmap] = []
    teacher = np.empty((len(samples), scores.classes), np.float32)
    for start in range(0, len(samples), BATCH_ROWS):
        part = samples.take(slice(start, start + BATCH_ROWS))
        hidden, distribution = run_base(base, points, scores, bind_rows(part))
        if not writers:
            writers = [
                np.lib.format.open_memmap(  # type: ignore[no-untyped-call]  # numpy
                    file, "w+", np.float32, (len(samples), *value.shape[1:])
                )
                for file, value in zip(files, hidden, strict=True)
            ]
        for writer, value in zip(writers, hidden, strict=True):
            writer[start : start + len(value)] = value
        teacher[start : start + len(distribution)] = distribution
        advance(len(part))
    for writer in writers:
        writer.flush()
    return teacher
