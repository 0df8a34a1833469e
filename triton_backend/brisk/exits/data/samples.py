"""Inputs to train caches on, and their division."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from brisk.errors import InvalidRequestError
from brisk.exits.sources import Sources


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


SHARES = (0.50, 0.12, 0.18)
"""The shares for predictors, for selectors, and to tune thresholds and compose.

The rest, 20 %, calibrates: it is looked at once, when all else is decided.
"""

SHARES_FITTED_ELSEWHERE = (0.10, 0.22, 0.30)
"""The shares if as many other rows fit predictors. More is left to prove with, and with more rows
an exit has to agree less often beyond what it promises."""

FEWEST = 200
"""The rows without which training makes no sense."""


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
    """Rows of the other data that may fit."""
    more_sources: np.ndarray
    """The sources of these."""


SHARES_IN_TIME = (0.45, 0.12, 0.18)
"""The shares if the newest rows prove: they may be unlike those before, and then prove less."""


def divide(
    samples: Samples, seed: int, more: Samples | None = None, *, proves_newest: bool = False
) -> Division:
    """Divide the sources at random; raises InvalidRequestError if there are too few.

    ``more`` fits predictors, too, except its copies of rows that do anything else.
    ``proves_newest``: samples are in order of time, and the newest calibrate.
    """
    numbered = Sources()
    sources = numbered.of(samples.inputs)
    _, firsts = np.unique(sources, return_index=True)
    firsts.sort()
    rows = len(firsts)
    if rows < FEWEST:
        copies = f", {len(samples) - rows} of them copies of others" if rows < len(samples) else ""
        raise InvalidRequestError(
            f"there are {len(samples)} samples to train learned caches on{copies}; "
            f"expected at least {FEWEST} different ones"
        )
    theirs = np.empty(0, np.int64) if more is None else numbered.of(more.inputs)
    order = np.random.default_rng(seed).permutation(rows)
    shares = SHARES if len(theirs) < rows else SHARES_FITTED_ELSEWHERE
    if proves_newest:
        shares = SHARES_IN_TIME
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
