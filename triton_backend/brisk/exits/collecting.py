"""Hidden outputs and class distributions, by running the base model itself (GATI, section 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from brisk.errors import InternalError, InvalidModelError
from brisk.execution.frame import Frame
from brisk.execution.loading import LoadedProgram
from brisk.exits.points import ExitPoint
from brisk.exits.samples import Samples
from brisk.exits.scores import Scores, as_probabilities, slots_of
from brisk.solutions.base import Value
from brisk.solutions.values import from_numpy

BATCH_ROWS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """``hidden[i]``: float32 [rows, ...] at the i-th point, mapped from a file.

    ``teacher``: the base model's distribution, float32 [rows, classes].
    """

    hidden: tuple[np.ndarray, ...]
    teacher: np.ndarray


def bind_rows(samples: Samples, loaded: LoadedProgram) -> dict[str, Value]:
    """The samples as inputs of a frame."""
    return {
        name: from_numpy(np.ascontiguousarray(array), loaded.device)
        for name, array in samples.inputs.items()
    }


def collect(
    loaded: LoadedProgram,
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
        _run_all(loaded, points, scores, samples, (files, teacher_file), advance)
    hidden = tuple(np.load(file, mmap_mode="r") for file in files)
    return Collected(hidden, np.load(teacher_file))


def _run_all(
    loaded: LoadedProgram,
    points: Sequence[ExitPoint],
    scores: Scores,
    samples: Samples,
    targets: tuple[list[Path], Path],
    advance: Callable[[int], None],
) -> None:
    """The teacher's file is written last: it says that all are complete."""
    files, teacher_file = targets
    writers: list[np.memmap] = []
    teacher = np.empty((len(samples), scores.classes), np.float32)
    for start in range(0, len(samples), BATCH_ROWS):
        part = samples.take(slice(start, start + BATCH_ROWS))
        hidden, distribution = run_base(loaded, points, scores, bind_rows(part, loaded))
        if not writers:
            writers = [
                _new_file(file, (len(samples), *value.shape[1:]))
                for file, value in zip(files, hidden, strict=True)
            ]
        for writer, value in zip(writers, hidden, strict=True):
            writer[start : start + len(value)] = value.cpu().numpy()
        teacher[start : start + len(distribution)] = distribution.cpu().numpy()
        advance(len(part))
    for writer in writers:
        writer.flush()
    unfinished = teacher_file.with_suffix(".unfinished.npy")
    np.save(unfinished, teacher)
    unfinished.replace(teacher_file)


def _new_file(file: Path, shape: tuple[int, ...]) -> np.memmap:
    made: np.memmap = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]  # numpy
        file, "w+", np.float32, shape
    )
    return made


def run_base(
    loaded: LoadedProgram,
    points: Sequence[ExitPoint],
    scores: Scores,
    inputs: Mapping[str, Value],
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What is at each point, float32 [rows, ...], and the distribution [rows, classes]."""
    places = slots_of(loaded)
    wanted = {point.position: places[point.value] for point in points}
    found: dict[int, torch.Tensor] = {}
    layered = dataclasses.replace(loaded, joined=None)
    with torch.inference_mode():
        frame = Frame(layered, inputs)
        while frame.layers_done <= scores.layer:
            frame.step()
            if frame.layers_done in wanted:
                found[frame.layers_done] = tensor_at(frame, wanted[frame.layers_done])
        distribution = as_probabilities(tensor_at(frame, places[scores.value]), scores.form)
    hidden = [found[point.position] for point in points]
    rows = {len(value) for value in (*hidden, distribution)}
    if len(rows) != 1:
        raise InvalidModelError(
            f"model '{loaded.program.name}' does not keep the batch as first dimension: "
            f"values have {sorted(rows)} rows for one batch"
        )
    return hidden, distribution


def tensor_at(frame: Frame, slot: int) -> torch.Tensor:
    """The tensor in ``slot``; InternalError where there is none."""
    value = frame.value_at(slot)
    if not isinstance(value, torch.Tensor):
        raise InternalError(f"slot {slot} holds no tensor at layer {frame.layers_done}")
    return value
