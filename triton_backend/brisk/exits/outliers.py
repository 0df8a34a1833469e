"""Inputs that no model was made for: selectors learn to leave them to the base model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from brisk.exits.samples import Samples

Maker = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""Real rows to as many outliers of the same shape."""


def _uniform(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return random.uniform(rows.min(), rows.max(), rows.shape)


def _gaussian(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return random.normal(rows.mean(), rows.std() + 1e-6, rows.shape)


def _shuffled(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Each row's own values in any order: right statistics, no structure."""
    flat = rows.reshape(len(rows), -1)
    return random.permuted(flat, axis=1).reshape(rows.shape)


def _constant(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    levels = random.uniform(rows.min(), rows.max(), (len(rows),) + (1,) * (rows.ndim - 1))
    return np.broadcast_to(levels, rows.shape)


def _blended(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Halfway between two samples."""
    return (rows + np.roll(rows, int(random.integers(1, max(len(rows), 2))), axis=0)) / 2


def _negative(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return rows.max() + rows.min() - rows


MAKERS: tuple[Maker, ...] = (_uniform, _gaussian, _shuffled, _constant, _negative, _blended)

CLEAR_SHARE = 1 - 1 / len(MAKERS)
"""Leading share of outliers that are clearly none of the data; blends, which come last, may be."""


def make_outliers(samples: Samples, seed: int) -> Samples:
    """As many as there are samples, a part of each kind.

    Only floating-point inputs are changed; a model without any has no outliers.
    """
    random = np.random.default_rng(seed)
    if not any(array.dtype.kind == "f" for array in samples.inputs.values()):
        return samples.take(slice(0, 0))
    made: dict[str, list[np.ndarray]] = {name: [] for name in samples.inputs}
    parts_of_rows = np.array_split(np.arange(len(samples)), len(MAKERS))
    for maker, rows in zip(MAKERS, parts_of_rows, strict=True):
        for name, array in samples.inputs.items():
            part = array[rows]
            if part.dtype.kind == "f" and len(part):
                part = maker(part, random).astype(array.dtype)
            made[name].append(part)
    return Samples({name: np.concatenate(parts) for name, parts in made.items()})
