"""Inputs that are out of distribution for any model: selectors learn to leave them to the base
model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.exits.data.rows import Rows
from brisk.exits.data.samples import Samples
from brisk.exits.sources import with_sides_last

Maker = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""A function that makes from real rows as many outliers of the same shape."""


def _uniform(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return random.uniform(rows.min(), rows.max(), rows.shape)


def _gaussian(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return random.normal(rows.mean(), rows.std() + 1e-6, rows.shape)


def _shuffled(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Permute each row's own values: right statistics, no structure."""
    flat = rows.reshape(len(rows), -1)
    return random.permuted(flat, axis=1).reshape(rows.shape)


def _constant(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    levels = random.uniform(rows.min(), rows.max(), (len(rows),) + (1,) * (rows.ndim - 1))
    return np.broadcast_to(levels, rows.shape)


def _clouds(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Make smooth noise of the data's range: a few random values on each axis, interpolated."""
    noise = random.uniform(0, 1, (*rows.shape[:2], *(min(side, 3) for side in rows.shape[2:])))
    for axis, side in enumerate(rows.shape[2:], start=2):
        noise = _stretched(noise, axis, side)
    least, most = rows.min(), rows.max()
    return least + noise * (most - least)


def _stretched(values: np.ndarray, axis: int, side: int) -> np.ndarray:
    """Interpolate linearly along ``axis`` to ``side`` values."""
    places = np.linspace(0, values.shape[axis] - 1, side)
    low = np.minimum(places.astype(int), max(values.shape[axis] - 2, 0))
    high = np.minimum(low + 1, values.shape[axis] - 1)
    share = (places - low).reshape([-1 if at == axis else 1 for at in range(values.ndim)])
    return values.take(low, axis) * (1 - share) + values.take(high, axis) * share


MOST_SHAPES = 6


def _shapes(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw a few blocks, each of one level, on a ground of another: edges without any texture."""
    drawings = np.array(_constant(rows, random))
    sides = rows.shape[2:] or rows.shape[1:]
    for number in range(len(drawings)):
        for _ in range(random.integers(1, MOST_SHAPES + 1)):
            ends = [np.sort(random.integers(0, side + 1, 2)) for side in sides]
            every = [slice(None)] * (rows.ndim - 1 - len(sides))
            block = (number, *every, *(slice(start, stop) for start, stop in ends))
            level = random.uniform(rows.min(), rows.max())
            drawings[block] = level
    return drawings


def _blended(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return points halfway between two samples; the rows come in random order."""
    return (rows + np.roll(rows, 1, axis=0)) / 2


def _negative(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return rows.max() + rows.min() - rows


MAKERS: tuple[Maker, ...] = (
    _uniform,
    _gaussian,
    _shuffled,
    _constant,
    _negative,
    _clouds,
    _shapes,
    _blended,
)

CLEAR = len(MAKERS) - 1
"""The number of kinds that are clearly out of distribution; blends, which come last, may be in."""

ROWS_OF_A_KIND, MOST_OF_A_KIND = 90, 1000
"""The fewest and the most rows of a kind. A third of them sets the floor, a third trains
predictors, a third selectors. Negatives of photographs take hundreds: floors that they reach cost
hits."""

FOR_PREDICTOR, FOR_SELECTOR, FOR_FLOOR = range(3)
"""The uses of outliers."""


@dataclass(frozen=True, slots=True, eq=False)
class Outliers:
    """Outliers of several kinds."""

    samples: Samples
    kinds: np.ndarray
    """The number of each row's kind, int64 [rows]."""
    uses: np.ndarray
    """The use of each row, int64 [rows]; all rows made of one source have the same."""

    def __len__(self) -> int:
        return len(self.kinds)


def make_outliers(
    samples: Samples,
    seed: int,
    sources: np.ndarray | None = None,
    *,
    of_a_kind: int | None = None,
    folder: Path | None = None,
) -> Outliers:
    """Return outliers of every kind in equal parts.

    ``sources``: each sample's, int64 [rows]; None: every row is its own. ``of_a_kind``: the rows
    of each kind; None: by the number of samples. ``folder``: where they are kept if they take much
    memory (``Rows``). Only floating-point inputs are changed; a model without any has no outliers.
    Blends of samples are the selector's: they are out of distribution, not meaningless.
    """
    random = np.random.default_rng(seed)
    if not any(array.dtype.kind == "f" for array in samples.inputs.values()):
        nothing = np.empty(0, np.int64)
        return Outliers(samples.take(slice(0, 0)), nothing, nothing)
    uses = (np.arange(len(samples)) if sources is None else sources) % 3
    each = of_a_kind or min(MOST_OF_A_KIND, max(ROWS_OF_A_KIND, len(samples) // len(MAKERS)))
    made = {name: Rows(folder) for name in samples.inputs}
    chosen_uses: list[np.ndarray] = []
    kinds: list[int] = []
    for kind, maker in enumerate(MAKERS):
        order = random.permutation(len(samples))
        if kind >= CLEAR:
            order = order[uses[order] == FOR_SELECTOR]
            order = order if len(order) > 1 else order[:0]
        rows = np.resize(order, each if len(order) else 0)
        chosen_uses.append(uses[rows])
        kinds += [kind] * len(rows)
        for name, array in samples.inputs.items():
            part = array[rows]
            if part.dtype.kind == "f":
                turned = with_sides_last(part)
                outliers = maker(turned, random).astype(array.dtype)
                part = outliers if turned.shape == part.shape else np.moveaxis(outliers, 1, -1)
            made[name].append(part)
    inputs = {name: every.joined() for name, every in made.items()}
    return Outliers(Samples(inputs), np.array(kinds, np.int64), np.concatenate(chosen_uses))
