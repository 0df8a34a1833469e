"""A window of recent inputs: bounded, without duplicates, recent ones counting more."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np


class Use(Enum):
    """What a sample is for, for ever: nothing is proved on what has trained."""

    FIT = "fit"
    SELECT = "select"
    HELD_OUT = "held out"


_FIT_OF_256, _SELECT_OF_256 = 115, 39
"""By a sample's digest: 45 % fit predictors, 15 % selectors, 40 % are held out."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One row of a request. ``inputs``: arrays without the batch dimension, of this process."""

    digest: bytes
    inputs: Mapping[str, np.ndarray]
    arrived_s: float
    size_bytes: int

    @property
    def use(self) -> Use:
        first = self.digest[0]
        if first < _FIT_OF_256:
            return Use.FIT
        return Use.SELECT if first < _FIT_OF_256 + _SELECT_OF_256 else Use.HELD_OUT


class SampleWindow:
    """The last distinct samples; an input that comes again is only noted as recent."""

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._samples: OrderedDict[bytes, Sample] = OrderedDict()
        self._bytes = 0
        self.offered = 0

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def size_bytes(self) -> int:
        """Of all samples together."""
        return self._bytes

    def samples(self) -> tuple[Sample, ...]:
        """Oldest first."""
        return tuple(self._samples.values())

    def offer(self, inputs: Mapping[str, np.ndarray], arrived_s: float) -> None:
        """Take the rows of a request; the arrays are copied. Rows larger than all are left."""
        rows = len(next(iter(inputs.values())))
        for row in range(rows):
            one = {name: np.ascontiguousarray(array[row]) for name, array in inputs.items()}
            self._add({name: array.copy() for name, array in one.items()}, arrived_s)

    def drop(self, sample: Sample) -> None:
        """Forget a sample that is there."""
        del self._samples[sample.digest]
        self._bytes -= sample.size_bytes

    def _add(self, inputs: Mapping[str, np.ndarray], arrived_s: float) -> None:
        self.offered += 1
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(inputs):
            digest.update(name.encode() + inputs[name].tobytes())
        size = sum(array.nbytes for array in inputs.values())
        sample = Sample(digest.digest(), inputs, arrived_s, size)
        before = self._samples.pop(sample.digest, None)
        self._bytes += sample.size_bytes - (before.size_bytes if before is not None else 0)
        self._samples[sample.digest] = sample
        while len(self._samples) > self._most_rows or self._bytes > self._most_bytes:
            _, oldest = self._samples.popitem(last=False)
            self._bytes -= oldest.size_bytes


def recent_choice(
    arrived_s: Sequence[float], now_s: float, half_life_s: float, count: int, seed: int
) -> np.ndarray:
    """Numbers of at most ``count`` samples, drawn without replacement by recency (GATI, 5.3)."""
    ages = np.maximum(now_s - np.asarray(arrived_s, np.float64), 0.0)
    weights = np.exp2(-(ages - ages.min(initial=np.inf)) / half_life_s) + 1e-9
    random = np.random.default_rng(seed)
    keys = random.exponential(1.0, len(weights)) / weights
    return np.sort(np.argsort(keys)[:count])
