"""Hidden outputs and class distributions, by running the base model itself (GATI, section 3.1)."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from brisk.errors import BriskError, InvalidModelError, InvalidRequestError
from brisk.exits.base_model import (
    BaseModel,
    answers_of,
    run_base,
    run_in_batches,
    values_at,
)
from brisk.exits.data.samples import Samples
from brisk.exits.model_graph import ExitPoint
from brisk.exits.scores import ScoreForm, Scores, checked_scores, uncertain


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """The outputs of the base model for all rows."""

    hidden: tuple[np.ndarray, ...]
    """The hidden output at each point, or its features if they were reduced, float32 [rows, ...],
    mapped from a file."""
    teacher: np.ndarray
    """The distribution over the classes, float32 [rows, classes]."""
    summaries: tuple[np.ndarray | None, ...]
    """The summaries of hidden outputs that were reduced, like ``hidden``; None of the others."""
    firsts: tuple[np.ndarray, ...]
    """The hidden output of the first row at each point, never reduced, float32 [1, ...]."""

    @property
    def are_numbers(self) -> np.ndarray:
        """Whether all of each row's distribution is finite, bool [rows]."""
        return np.asarray(np.isfinite(self.teacher).all(1))


Reduce = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""A function from hidden outputs to features and a summary of them, float32 [rows, numbers] each,
which are stored in their place."""

BATCH_BYTES = 64 << 20
"""The most bytes of hidden outputs that are in memory at a time, if several rows are run."""


def bind_rows(samples: Samples) -> dict[str, np.ndarray]:
    """Return the samples as inputs of a frame."""
    return {name: np.ascontiguousarray(array) for name, array in samples.inputs.items()}


def collect(
    base: BaseModel,
    points: Sequence[ExitPoint],
    scores: Scores,
    parts: Sequence[Samples],
    folder: Path,
    advance: Callable[[int], None] = lambda rows: None,
    reductions: Mapping[str, Reduce | None] = MappingProxyType({}),
) -> Collected:
    """Run the samples of all ``parts``, writing the values at ``points`` into ``folder``.

    Files of a complete earlier call are read again if they fit. ``advance`` is called with the
    rows done. ``reductions``: by the names of points' values.
    """
    files = _files(folder, points, reductions)
    teacher_file, marker_file = folder / "teacher.npy", folder / "collected.json"
    marker = _marker(points, scores, reductions)
    count = sum(map(len, parts))
    firsts, of_classes = run_base(base, points, scores, bind_rows(parts[0].take(slice(1))))
    stored = _reduced(firsts, points, reductions)
    shapes = [(count, *one.shape[1:]) for one in (*stored, of_classes)]
    if _is_there(marker_file, marker) and _are_there((*files, teacher_file), shapes):
        advance(count)
        return _read(folder, points, reductions, firsts)
    # It says which are complete: they are soon at their full size, of zeros.
    marker_file.unlink(missing_ok=True)
    writers: list[np.memmap] = []
    teacher = np.empty((count, scores.classes), np.float32)
    start = 0
    most_rows = max(1, BATCH_BYTES // max(1, sum(first.nbytes for first in firsts)))
    batches = (run_in_batches(base, points, scores, part.inputs, most_rows) for part in parts)
    for hidden, distribution in itertools.chain.from_iterable(batches):
        if not writers:
            writers = [_made(file, shape) for file, shape in zip(files, shapes, strict=False)]
        rows = slice(start, start + len(distribution))
        for writer, value in zip(writers, _reduced(hidden, points, reductions), strict=True):
            writer[rows] = value
        teacher[rows] = distribution
        start += len(distribution)
        advance(len(distribution))
    for writer in writers:
        writer.flush()
    np.save(teacher_file, teacher)
    unfinished = marker_file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(marker))
    unfinished.replace(marker_file)  # last
    return _read(folder, points, reductions, firsts)


def _made(file: Path, shape: tuple[int, ...]) -> np.memmap:
    """Make a file of float32 with room for all of it: what is written to a mapped file that finds
    none ends the process. Raises OSError that names the file."""
    made: np.memmap = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]  # numpy
        file, "w+", np.float32, shape
    )
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, os.fstat(descriptor).st_size)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error
    finally:
        os.close(descriptor)
    return made


def hidden_file(folder: Path, position: int) -> Path:
    """Return the file of a point's hidden outputs, or of their features."""
    return folder / f"hidden-{position}.npy"


def summary_file(folder: Path, position: int) -> Path:
    """Return the file of the summaries of a point's hidden outputs, if these are reduced."""
    return folder / f"summary-{position}.npy"


def _files(
    folder: Path, points: Sequence[ExitPoint], reductions: Mapping[str, Reduce | None]
) -> list[Path]:
    files = []
    for point in points:
        files.append(hidden_file(folder, point.position))
        if reductions.get(point.value):
            files.append(summary_file(folder, point.position))
    return files


def _reduced(
    hidden: Sequence[np.ndarray],
    points: Sequence[ExitPoint],
    reductions: Mapping[str, Reduce | None],
) -> list[np.ndarray]:
    """Return what is stored of hidden outputs, in the order of ``_files``."""
    stored: list[np.ndarray] = []
    for value, point in zip(hidden, points, strict=True):
        reduce = reductions.get(point.value)
        stored += [value] if reduce is None else reduce(value)
    return stored


def _marker(
    points: Sequence[ExitPoint], scores: Scores, reductions: Mapping[str, Reduce | None]
) -> list[object]:
    """Return what the files are of, as JSON: the scores, and each point's position, value and
    whether it is reduced."""
    stored = [[one.position, one.value, bool(reductions.get(one.value))] for one in points]
    return [scores.value, scores.form.value, stored]


def _is_there(marker_file: Path, marker: list[object]) -> bool:
    """Whether the files are complete, and of what ``marker`` says."""
    try:
        found: object = json.loads(marker_file.read_text())
    except (OSError, ValueError):
        return False
    return found == marker


def _are_there(files: Sequence[Path], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the files are there, and float32 of ``shapes``."""
    try:
        found = [np.load(file, mmap_mode="r") for file in files]
    except (OSError, EOFError, ValueError):
        return False
    expected = [(np.dtype(np.float32), shape) for shape in shapes]
    return [(each.dtype, each.shape) for each in found] == expected


def _read(
    folder: Path,
    points: Sequence[ExitPoint],
    reductions: Mapping[str, Reduce | None],
    firsts: Sequence[np.ndarray],
) -> Collected:
    def mapped(file: Path) -> np.ndarray:
        array: np.ndarray = np.load(file, mmap_mode="r")
        return array

    return Collected(
        tuple(mapped(hidden_file(folder, point.position)) for point in points),
        np.load(folder / "teacher.npy"),
        tuple(
            mapped(summary_file(folder, point.position)) if reductions.get(point.value) else None
            for point in points
        ),
        tuple(map(np.array, firsts)),
    )


def with_rows(
    base: BaseModel, points: Sequence[ExitPoint], samples: Samples
) -> tuple[ExitPoint, ...]:
    """Return those of ``points`` whose values have rows in a run: some types do not say so.

    Precondition: ``base`` stops behind them. Raises InvalidModelError if none has.
    """
    rows = min(COMPARED_ROWS, len(samples))
    values = values_at(base, points, bind_rows(samples.take(slice(rows))))
    fitting = tuple(each for each in points if values[each.value].shape[:1] == (rows,))
    if not fitting:
        raise InvalidModelError(f"model '{base.graph.name}' has no value that keeps its rows")
    return fitting


SETTLED_ROWS, CLOSE = 32, 1e-3


def settled_scores(base: BaseModel, scores: Scores, samples: Samples) -> Scores:
    """Return ``scores`` with the form that they have on samples.

    A softmax that is written out in elementary operators makes probabilities, too, and a cache has
    to answer in the same form. Precondition: ``base`` stops behind the scores.
    """
    if scores.form is not ScoreForm.LOGITS:
        return scores
    rows = bind_rows(samples.take(slice(0, SETTLED_ROWS)))
    values = checked_scores(values_at(base, (), rows, scores)[scores.value], scores)
    values = values[~np.isnan(values).any(1)]
    if not len(values):
        return scores
    for form, shares in (
        (ScoreForm.PROBABILITIES, values),
        (ScoreForm.LOG_PROBABILITIES, np.exp(np.minimum(values, 1.0))),
    ):
        if (shares >= 0).all() and np.allclose(shares.sum(1), 1.0, atol=CLOSE):
            return dataclasses.replace(scores, form=form, is_certain=True)
    return scores


MOST_UNCERTAIN = 0.6
"""The greatest mean entropy of class scores, which are peaked, over the uniform distribution's."""

MOST_OF_ONE_CLASS = 0.95
"""The share of rows of one class from which on they may as well be values, such as a forecast or
the corners of a box, of which the same one is always the greatest."""

COMPARED_ROWS = 3


def check_classes(
    teacher: np.ndarray, scores: Scores, model: str, *, needs_classes: bool = False
) -> None:
    """Raises InvalidModelError if the answers do not look like scores of classes, or if the model
    ``needs_classes`` and does not say itself that they are; InvalidRequestError if these data
    alone leave it open: nearly all are of one class.

    ``teacher``: softmax of the scores, [rows, classes]. Scores which the model itself or the user
    calls such are not checked.
    """
    if scores.is_certain:
        return
    if needs_classes:
        raise uncertain(scores, model)
    entropy = -(teacher * np.log(np.maximum(teacher, 1e-12))).sum(1).mean()
    share = float(entropy) / math.log(scores.classes)
    of_one = float(np.bincount(teacher.argmax(1)).max()) / len(teacher)
    kind: type[BriskError] = InvalidModelError
    found = ""
    if share > MOST_UNCERTAIN:
        found = (
            f"a softmax of it is {share:.0%} as uncertain as guessing on the data, expected at "
            f"most {MOST_UNCERTAIN:.0%}"
        )
    elif of_one >= MOST_OF_ONE_CLASS:
        found = f"{of_one:.0%} of the data have one class, expected below {MOST_OF_ONE_CLASS:.0%}"
        kind = InvalidRequestError  # others may have more
    if found:
        raise kind(
            f"output '{scores.value}' of model '{model}' does not look like class scores: "
            f"{found}. Of values, brisk_tolerance (--tolerance) says which count as the model's "
            f"own; if it classifies, say so to `brisk caches train`: --output {scores.value}"
        )


def check_rows(
    base: BaseModel, points: tuple[ExitPoint, ...], scores: Scores, samples: Samples
) -> None:
    """Raises InvalidModelError if a row's values depend on the other rows of its batch."""
    if base.graph.is_single:
        return
    rows = min(COMPARED_ROWS, len(samples))
    together, _ = run_base(base, points, scores, bind_rows(samples.take(slice(rows))))
    for row in range(rows):
        one = samples.take(slice(row, row + 1))
        alone, _ = run_base(base, points, scores, bind_rows(one))
        for point, ours, theirs in zip(points, alone, together, strict=True):
            # sums in another order differ by some of the greatest value
            most = 1e-3 * max(1.0, float(np.abs(theirs[row]).max(initial=0.0)))
            close = np.allclose(ours[0], theirs[row], rtol=1e-2, atol=most, equal_nan=True)
            if not close:
                raise InvalidModelError(
                    f"model '{base.graph.name}' mixes the rows of a batch (value "
                    f"'{point.value}'): learned caches need rows that can leave it"
                )


def check_batches(base: BaseModel, scores: Scores, samples: Samples) -> None:
    """Raise InvalidModelError if a row's answer depends on the other rows of its batch.

    Precondition: ``base`` was loaded with ``taps_of`` the scores.
    """
    if base.graph.is_single:
        return
    some = samples.take(slice(COMPARED_ROWS))
    together = answers_of(base, scores, bind_rows(some))
    for row in range(len(some)):
        alone = answers_of(base, scores, bind_rows(some.take(slice(row, row + 1))))
        for one, every in zip(alone, together, strict=True):
            most = 1e-3 * max(1.0, float(np.abs(every).max(initial=0.0)))
            if not np.allclose(one[0], every[row], rtol=1e-2, atol=most, equal_nan=True):
                raise InvalidModelError(
                    f"model '{base.graph.name}' mixes the rows of a batch: early answers need "
                    "rows that can leave it"
                )


def check_outputs(base: BaseModel, samples: Samples) -> None:
    """Raise InvalidModelError unless each output has a row for each of a batch: those of early
    answers to some rows and of the model's to others are put together row by row."""
    if base.graph.is_single:
        return
    for rows in range(2, min(COMPARED_ROWS, len(samples)) + 1):  # an output may have as many
        for name, value in base.run(bind_rows(samples.take(slice(rows)))).items():
            if np.shape(value)[:1] != (rows,):
                raise InvalidModelError(
                    f"output '{name}' of model '{base.graph.name}' has shape "
                    f"{list(np.shape(value))} for {rows} rows: early answers need outputs with "
                    "the batch as first dimension"
                )
