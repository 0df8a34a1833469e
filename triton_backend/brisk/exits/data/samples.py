"""Inputs to train caches on, and their division."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.errors import InvalidRequestError, counted
from brisk.exits.data.rows import Rows
from brisk.exits.sources import Sources, marks


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Rows of inputs."""

    inputs: Mapping[str, np.ndarray]
    """Arrays by name, whose first dimension is the rows."""
    labels: np.ndarray | None = None
    """True classes, int64 [rows], if they are known; they are only reported against, since a cache
    is judged by the base model's answers."""

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def take(self, rows: np.ndarray | slice) -> Samples:
        """Return the samples of ``rows``."""
        labels = None if self.labels is None else self.labels[rows]
        return Samples({name: array[rows] for name, array in self.inputs.items()}, labels)

    def finite(self) -> Samples:
        """Return the rows whose inputs all are finite numbers, none if an input has no numbers.

        The others teach nothing: exits leave them to the model.
        """
        kept = np.ones(len(self), bool)
        for array in self.inputs.values():
            if not math.prod(array.shape[1:]):
                kept[:] = False
            elif array.dtype.kind == "f":
                kept &= np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
        return self.take(kept)

    def sources(self, numbered: Sources) -> np.ndarray:
        """Return the source of each row, int64 [rows]."""
        return numbered.of(self.inputs)

    @property
    def row_elements(self) -> int:
        """The numbers of a row's inputs."""
        return sum(math.prod(array.shape[1:]) for array in self.inputs.values())


@dataclass(frozen=True, slots=True, eq=False)
class SampleGroups:
    """Rows whose inputs may have several shapes, texts of several lengths for example."""

    groups: tuple[Samples, ...]
    """The groups, each of rows of one shape; none is empty."""
    places: tuple[np.ndarray, ...]
    """The indices of each group's rows among all rows, int64 [rows]."""

    @classmethod
    def of(cls, parts: Iterable[Samples], folder: Path | None = None) -> SampleGroups:
        """Group the rows of ``parts``, which are numbered in order. Labels are left out.

        ``folder``: where rows that take much memory are kept instead (``Rows``); OSError is raised
        if they cannot be."""
        alike: dict[tuple[tuple[str, tuple[int, ...]], ...], dict[str, Rows]] = {}
        places: dict[tuple[tuple[str, tuple[int, ...]], ...], list[np.ndarray]] = {}
        count = 0
        for part in parts:
            shapes = tuple((name, array.shape[1:]) for name, array in sorted(part.inputs.items()))
            group = alike.setdefault(shapes, {name: Rows(folder) for name in part.inputs})
            for name, array in part.inputs.items():
                group[name].append(array)
            places.setdefault(shapes, []).append(np.arange(count, count + len(part)))
            count += len(part)
        groups = (
            Samples({name: rows.joined() for name, rows in group.items()})
            for group in alike.values()
        )
        return cls(tuple(groups), tuple(map(np.concatenate, places.values())))

    def __len__(self) -> int:
        return sum(map(len, self.groups))

    def take(self, rows: np.ndarray) -> SampleGroups:
        """Return the samples of ``rows``, numbered in that order."""
        owners = np.empty(len(self), np.int64)
        numbers = np.empty(len(self), np.int64)
        for owner, places in enumerate(self.places):
            owners[places], numbers[places] = owner, np.arange(len(places))
        taken, places_taken = [], []
        for owner, group in enumerate(self.groups):
            places = np.flatnonzero(owners[rows] == owner)
            if len(places):
                taken.append(group.take(numbers[rows[places]]))
                places_taken.append(places)
        return SampleGroups(tuple(taken), tuple(places_taken))

    @property
    def largest(self) -> Samples:
        """The group of most rows."""
        return max(self.groups, key=len)

    @property
    def typical_row(self) -> Samples:
        """One row, of the median number of elements."""
        seen = 0
        for group in sorted(self.groups, key=lambda each: each.row_elements):
            seen += len(group)
            if 2 * seen >= len(self):
                break
        return group.take(slice(0, 1))

    def sources(self, numbered: Sources) -> np.ndarray:
        """Return the source of each row, int64 [rows].

        Images of different shapes are of different sources; other inputs are compared by content.
        """
        found = np.empty((len(self), 2), np.int64)
        for number, (group, places) in enumerate(zip(self.groups, self.places, strict=True)):
            row_marks = marks(group.inputs)
            is_digest = row_marks.dtype == np.uint8
            found[places, 0] = -1 if is_digest else number
            found[places, 1] = (numbered if is_digest else Sources()).of_marks(row_marks)
        _, sources = np.unique(found, axis=0, return_inverse=True)
        return np.asarray(sources.reshape(-1), np.int64)


SHARES = (0.50, 0.12, 0.18)
"""The shares for predictors, for selectors, and to tune thresholds and compose.

The rest, 20 %, calibrates: it is looked at once, when all else is decided.
"""

SHARES_FITTED_ELSEWHERE = (0.10, 0.22, 0.30)
"""The shares if at least as many other rows fit predictors. More rows are left to prove with, so
an exit has to exceed its promised agreement by less."""

FEWEST = 200
"""The fewest rows with which training makes sense."""


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """Row numbers of each part. No two parts share a source (``brisk.exits.sources``).

    All rows of a source may fit; only its first one does anything else: copies are no more
    evidence.
    """

    fit: np.ndarray
    select: np.ndarray
    tune: np.ndarray
    calibrate: np.ndarray
    more: np.ndarray
    """Rows of the other data that may fit predictors."""
    more_sources: np.ndarray
    """The sources of the rows of ``more``."""


SHARES_IN_TIME = (0.45, 0.12, 0.18)
"""The shares if the newest rows prove: they may differ from those before, and then prove less."""


def divide(
    samples: Samples | SampleGroups,
    seed: int,
    more: Samples | None = None,
    *,
    proves_newest: bool = False,
    proving: int = 0,
) -> Division:
    """Divide the sources at random; raises InvalidRequestError if there are too few.

    ``more`` fits predictors, too, except its copies of rows that do anything else.
    ``proves_newest``: samples are in order of time, and the newest calibrate. ``proving``: how
    many have to calibrate, so that an error says how many samples to give.
    """
    numbered = Sources()
    sources = samples.sources(numbered)
    _, firsts = np.unique(sources, return_index=True)
    firsts.sort()
    rows = len(firsts)
    theirs = np.empty(0, np.int64) if more is None else more.sources(numbered)
    shares = SHARES if len(theirs) < rows else SHARES_FITTED_ELSEWHERE
    if proves_newest:
        shares = SHARES_IN_TIME
    if rows < FEWEST:
        fewest = max(FEWEST, math.ceil(round(proving / (1 - sum(shares)), 6)))
        copies = f", {len(samples) - rows} of them copies of others" if rows < len(samples) else ""
        raise InvalidRequestError(
            f"there {'is' if len(samples) == 1 else 'are'} {counted(len(samples), 'sample')} to "
            f"train learned caches on{copies}; expected at least {fewest} different ones"
        )
    order = np.random.default_rng(seed).permutation(rows)
    if proves_newest:
        is_new = order >= sum(shares) * rows
        order = np.concatenate([order[~is_new], order[is_new]])
    order = firsts[order]
    bounds = np.cumsum(shares) * rows
    fit, select, tune, calibrate = np.split(order, bounds.astype(int))
    others = np.concatenate([select, tune, calibrate])
    of_fit = np.flatnonzero(np.isin(sources, sources[fit]))
    fit = np.concatenate([fit, np.setdiff1d(of_fit, fit)])
    may_fit = np.flatnonzero(~np.isin(theirs, sources[others]))
    return Division(fit, select, tune, calibrate, may_fit, theirs[may_fit])
