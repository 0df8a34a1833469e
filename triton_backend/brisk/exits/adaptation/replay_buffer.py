"""A window of recent inputs: bounded, without duplicates, recent ones counting more.

An input is kept until the base model has run on it, and then what exits see of it in its place: of
a photograph some ten kilobytes.

The use of a sample is decided by its source (``brisk.exits.sources``): a picture that comes again
moved or dimmed has the use that it had before, and a copy of what has trained the caches only
trains.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from brisk.exits.adaptation.features import Material
from brisk.exits.sources import Sources, digests, marks


class Use(Enum):
    """The use of a source: nothing is proved on what has trained."""

    FIT = "fit"
    SELECT = "select"
    HELD_OUT = "held out"


_FIT_OF_256, _SELECT_OF_256 = 115, 39
"""The values, of the 256 of the first byte of the digest of a source's first sample, that fit
predictors (45 %) and selectors (15 %); 40 % are held out."""

REMEMBERED_SOURCES = 16_384
"""The number of sources of traffic whose use is remembered. A source that comes back after half as
many others or more may change its use."""


@dataclass(slots=True, eq=False)
class BufferedSample:
    """One row of a request."""

    digest: bytes
    inputs: Mapping[str, np.ndarray]
    """The inputs by name, without the batch dimension, in this process's own memory; none once the
    base model has run."""
    arrived_s: float
    size_bytes: int
    source: int
    use: Use
    seen: Material | None = None
    """The sample as exits see it; None until the base model has run."""


class SampleWindow:
    """The last distinct samples; an input that comes again is only noted as recent."""

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._original = Sources()
        self._original_uses: dict[int, Use] = {}
        self._recent = Sources(REMEMBERED_SOURCES)
        self._recent_uses: OrderedDict[int, Use] = OrderedDict()
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._samples: OrderedDict[bytes, BufferedSample] = OrderedDict()
        self._bytes = self._fresh_bytes = 0
        self.offered = 0

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def size_bytes(self) -> int:
        """The size of all samples together."""
        return self._bytes

    @property
    def fresh_bytes(self) -> int:
        """The size of the samples on which the base model has not run yet."""
        return self._fresh_bytes

    def samples(self) -> tuple[BufferedSample, ...]:
        """Return all samples, the oldest first."""
        return tuple(self._samples.values())

    def reserve(self, rows: np.ndarray, use: Use) -> None:
        """Reserve traffic of one source with ``rows``, given by their marks, for ``use``.

        The first reservation of a source holds.
        """
        for source in self._original.of_marks(rows).tolist():
            self._original_uses.setdefault(source, use)

    def offer(self, inputs: Mapping[str, np.ndarray], arrived_s: float) -> None:
        """Take the rows of a request; the arrays are copied. Too large a row is not kept."""
        names, row_marks = digests(inputs), marks(inputs)
        sources = self._recent.of_marks(row_marks).tolist()
        originals = self._original.known(row_marks).tolist()
        for row, digest in enumerate(names):
            use = self._original_uses.get(originals[row])
            if use is None:
                use = self._use_of(sources[row], digest)
            one = {name: np.array(array[row], order="C") for name, array in inputs.items()}
            size = sum(array.nbytes for array in one.values())
            self._add(BufferedSample(digest, one, arrived_s, size, sources[row], use))

    def see(self, sample: BufferedSample, seen: Material) -> None:
        """Keep what exits see of ``sample`` in place of its inputs, unless it is forgotten."""
        if self._samples.get(sample.digest) is sample:
            self._count(sample, -1)
            sample.inputs, sample.seen, sample.size_bytes = {}, seen, seen.size_bytes
            self._count(sample, 1)
            self._shrink()

    def drop(self, sample: BufferedSample) -> None:
        """Forget ``sample``, if it is there."""
        if self._samples.get(sample.digest) is sample:
            self._count(self._samples.pop(sample.digest), -1)

    def _use_of(self, source: int, digest: bytes) -> Use:
        """Return the source's use so far, else one by ``digest``, its first sample's."""
        if source not in self._recent_uses:
            first = digest[0]
            held_out = Use.SELECT if first < _FIT_OF_256 + _SELECT_OF_256 else Use.HELD_OUT
            self._recent_uses[source] = Use.FIT if first < _FIT_OF_256 else held_out
            while len(self._recent_uses) > REMEMBERED_SOURCES:
                self._recent_uses.popitem(last=False)
        return self._recent_uses[source]

    def _add(self, sample: BufferedSample) -> None:
        self.offered += 1
        before = self._samples.pop(sample.digest, None)
        if before is not None:
            self._count(before, -1)
            if before.seen is not None:
                sample.inputs, sample.seen, sample.size_bytes = {}, before.seen, before.size_bytes
        if sample.size_bytes > self._most_bytes:
            return
        self._samples[sample.digest] = sample
        self._count(sample, 1)
        self._shrink()

    def _shrink(self) -> None:
        while len(self._samples) > self._most_rows or self._bytes > self._most_bytes:
            _, oldest = self._samples.popitem(last=False)
            self._count(oldest, -1)

    def _count(self, sample: BufferedSample, times: int) -> None:
        self._bytes += times * sample.size_bytes
        if sample.seen is None:
            self._fresh_bytes += times * sample.size_bytes


def newest_of_sources(samples: Sequence[BufferedSample]) -> list[BufferedSample]:
    """Return the last sample of each source, in order; copies are no further evidence."""
    newest = {sample.source: sample for sample in samples}
    return [sample for sample in samples if newest[sample.source] is sample]


def recent_choice(
    arrived_s: Sequence[float], now_s: float, half_life_s: float, count: int, seed: int
) -> np.ndarray:
    """Return indices of at most ``count`` samples, drawn without replacement by recency (GATI,
    section 5.3)."""
    ages = np.maximum(now_s - np.asarray(arrived_s, np.float64), 0.0)
    weights = np.exp2(-(ages - ages.min(initial=np.inf)) / half_life_s) + 1e-9
    random = np.random.default_rng(seed)
    keys = random.exponential(1.0, len(weights)) / weights
    return np.sort(np.argsort(keys)[:count])
