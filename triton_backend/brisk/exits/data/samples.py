"""Inputs to train caches on, and how they are divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from brisk.errors import InvalidRequestError
from brisk.exits.sources import Sources


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """``inputs`` by name, the first dimension of all being the same rows.

    ``labels``: int64 [rows] where they are known; they are only reported against, since a cache is
    judged by the base model's answers.
    """

    inputs: Mapping[str, np.ndarray]
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def take(self, rows: np.ndarray | slice) -> Samples:
        """The samples of ``rows``."""
        labels = None if self.labels is None else self.labels[rows]
        return Samples({name: array[rows] for name, array in self.inputs.items()}, labels)


SHARES = (0.50, 0.12, 0.18)
"""For predictors, for selectors, and to tune thresholds and compose.

The rest, 20 %, calibrates: it is looked at once, when all else is decided.
"""

SHARES_FITTED_ELSEWHERE = (0.10, 0.22, 0.30)
"""Where as many other rows fit predictors, which leaves more to what proves: with more rows an
exit has to agree less often beyond what it promises."""

FEWEST = 200
"""Rows with which training makes sense at all."""


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """Row numbers of each part. No two parts share a source (``brisk.exits.sources``).

    Of a source all rows fit, where it fits, and only the first one does anything else: copies are
    no more evidence. ``more``: rows of the other data that may fit, and ``more_sources`` of these.
    """

    fit: np.ndarray
    select: np.ndarray
    tune: np.ndarray
    calibrate: np.ndarray
    more: np.ndarray
    more_sources: np.ndarray


SHARES_IN_TIME = (0.45, 0.12, 0.18)
"""Where the newest rows prove: they may be unlike those before them, and then prove less."""


def divide(
    samples: Samples, seed: int, more: Samples | None = None, *, proves_newest: bool = False
) -> Division:
    """A random division of the sources; InvalidRequestError where there are too few.

    ``more`` fits predictors, too, but for its copies of what does anything else.
    ``proves_newest``: samples are in order of time, and what came last calibrates.
    """
    known = Sources()
    sources = known.of(samples.inputs)
    _, firsts = np.unique(sources, return_index=True)
    firsts.sort()
    rows = len(firsts)
    if rows < FEWEST:
        copies = f", {len(samples) - rows} of them copies of others" if rows < len(samples) else ""
        raise InvalidRequestError(
            f"there are {len(samples)} samples to train learned caches on{copies}; "
            f"expected at least {FEWEST} different ones"
        )
    theirs = np.empty(0, np.int64) if more is None else known.of(more.inputs)
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
