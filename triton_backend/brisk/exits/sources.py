"""The sources of inputs: what was trained with an input cannot be proved with a copy of it.

Data and traffic repeat: the same picture comes again, moved, dimmed or brightened. If rows were
divided at random, some copies would train and others prove, and what was memorised would look
proved. So rows are divided by *source*.

Two rows of images are of one source if the low frequencies of their grey values, as amplitudes
without phase, in relation to all of them and without the mean, differ by ``ALIKE`` at most: moving
a picture over an even ground changes only the phase, brightness and contrast only the scale. Rows
of anything else are of one source if they are equal, bit by bit, padding left out. Copies that
differ otherwise (turned, cut, enlarged) count as different sources.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np

FREQUENCIES = 6
"""The number of lowest frequencies on each axis; finer ones differ between copies by noise."""

ALIKE = 0.01
"""The greatest distance of two copies' amplitudes, whose length is 1. Pictures of different things
of one class differ by 0.1 and more, rounded copies by 0.001."""

BLOCK_ROWS = 256
BLOCK_NUMBERS = 1 << 22
"""The most numbers of images that are transformed at a time."""

DIGEST_BYTES = 16

MOST_CHANNELS = 4
"""The most values of a pixel: an array whose last dimension is no larger, and whose height and
width are, has them last."""


class Sources:
    """Numbers the sources seen so far, from 0; the first row of a source represents it.

    Beyond ``most`` sources the oldest half is forgotten; no number is used twice.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._traits = np.empty((0, 0), np.float32)
        self._numbers = np.empty(0, np.int64)
        self._equal: dict[bytes, int] = {}
        self._count = 0

    def of(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the source of each row, int64 [rows]."""
        return self.of_marks(marks(inputs))

    def of_marks(self, found: np.ndarray) -> np.ndarray:
        """Return the source of each row, like ``of``, from the rows' ``marks``."""
        if found.dtype == np.uint8:
            return np.array([self._of_bytes(row.tobytes()) for row in found], np.int64)
        blocks = [
            self._of_block(found[start : start + BLOCK_ROWS])
            for start in range(0, len(found), BLOCK_ROWS)
        ]
        return np.concatenate(blocks) if blocks else np.empty(0, np.int64)

    def known(self, found: np.ndarray) -> np.ndarray:
        """Return the source of each row, like ``of_marks``, but -1 for new ones, which are not
        added."""
        if found.dtype == np.uint8:
            return np.array([self._equal.get(row.tobytes(), -1) for row in found], np.int64)
        return self._nearest(found)

    def _of_bytes(self, digest: bytes) -> int:
        if digest not in self._equal:
            if self._most is not None and len(self._equal) >= self._most:
                for old in list(self._equal)[: self._most // 2]:
                    del self._equal[old]
            self._equal[digest] = self._next()
        return self._equal[digest]

    def _of_block(self, rows: np.ndarray) -> np.ndarray:
        sources = self._nearest(rows)
        alike = rows @ rows.T >= _LEAST_PRODUCT
        firsts = []
        for row in np.flatnonzero(sources < 0):
            if sources[row] < 0:
                sources[row] = self._next()
                sources[alike[row] & (sources < 0)] = sources[row]
                firsts.append(row)
        grown = [self._traits, rows[firsts]] if len(self._traits) else [rows[firsts]]
        self._traits = np.concatenate(grown)
        self._numbers = np.concatenate([self._numbers, sources[firsts]])
        if self._most is not None and len(self._numbers) > self._most:
            newest = slice(-(self._most // 2), None)
            self._traits, self._numbers = self._traits[newest], self._numbers[newest]
        return sources

    def _nearest(self, rows: np.ndarray) -> np.ndarray:
        sources = np.full(len(rows), -1, np.int64)
        if len(self._traits):
            products = rows @ self._traits.T
            best = products.argmax(1)
            is_known = products[np.arange(len(rows)), best] >= _LEAST_PRODUCT
            sources[is_known] = self._numbers[best[is_known]]
        return sources

    def _next(self) -> int:
        self._count += 1
        return self._count - 1


_LEAST_PRODUCT = 1 - ALIKE**2 / 2
"""The product of two rows of length 1 that are ``ALIKE`` apart."""


def marks(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a mark of each row, by which its source is recognised: for images float32
    [rows, amplitudes], each row of length 1; for anything else uint8 [rows, bytes of a digest].

    An image is floating point, [rows, ..., height, width] or [rows, height, width, channels].
    """
    if all(_is_of_images(array) for array in inputs.values()):
        parts = [_amplitudes(inputs[name]) for name in sorted(inputs)]
        return _of_length_one(np.concatenate(parts, 1))
    return np.frombuffer(b"".join(digests(inputs)), np.uint8).reshape(-1, DIGEST_BYTES)


def _is_of_images(array: np.ndarray) -> bool:
    sides = with_sides_last(array).shape[-2:]
    return array.dtype.kind == "f" and array.ndim >= 3 and min(sides) >= 2


def with_sides_last(array: np.ndarray) -> np.ndarray:
    """Return images as [rows, ..., height, width]; what is no image with its channels last is
    returned as it is."""
    *_, channels = array.shape
    is_last = array.ndim == 4 and channels <= MOST_CHANNELS < min(array.shape[1:3])
    return np.moveaxis(array, -1, 1) if is_last else array


def _amplitudes(array: np.ndarray) -> np.ndarray:
    """Return the amplitudes of the lowest frequencies but the mean, [rows, numbers]."""
    array = with_sides_last(array)
    height, width = array.shape[-2:]
    step = max(1, BLOCK_NUMBERS // max(1, math.prod(array.shape[1:])))
    down = np.r_[0 : min(FREQUENCIES, (height + 1) // 2), -min(FREQUENCIES - 1, height // 2) : 0]
    across = min(FREQUENCIES, width // 2 + 1)
    blocks = []
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(array), step):
            part = np.asarray(array[start : start + step], np.float64)
            grey = part.reshape(len(part), -1, height, width).mean(1)
            low = np.abs(np.fft.rfft2(grey))[:, down, :across].reshape(len(part), -1)[:, 1:]
            blocks.append(_of_length_one(low))
    count = len(down) * across - 1
    return np.concatenate(blocks) if blocks else np.empty((0, count), np.float32)


def _of_length_one(rows: np.ndarray) -> np.ndarray:
    """Return the rows scaled to length 1; rows of length 0 or with NaN become all equal."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    even = np.full(rows.shape[1], rows.shape[1] ** -0.5)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = rows / length
    is_even = ~(np.isfinite(length) & (length > 1e-6))
    return np.where(is_even, even, scaled).astype(np.float32)


def digests(inputs: Mapping[str, np.ndarray]) -> list[bytes]:
    """Return a digest of the content of each row, without the padding of texts."""
    ends = _ends(inputs)
    row_digests = []
    for row in range(len(next(iter(inputs.values())))):
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for name in sorted(inputs):
            content = inputs[name][row] if ends is None else inputs[name][row, : ends[row]]
            digest.update(name.encode() + np.ascontiguousarray(content).tobytes())
        row_digests.append(digest.digest())
    return row_digests


def _ends(inputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the length of each row's text with the first value of its padding, int64 [rows].

    Padding is what repeats a row's last value. None if rows are no texts: tensors of one dimension
    and one length, some of them integers.
    """
    arrays = tuple(inputs.values())
    length = arrays[0].shape[1] if arrays[0].ndim == 2 else 0
    is_text = any(array.dtype.kind in "iu" for array in arrays)
    if not length or not is_text or any(array.shape[1:] != (length,) for array in arrays):
        return None
    with np.errstate(invalid="ignore"):
        is_other = np.any([array != array[:, -1:] for array in arrays], axis=0)
    last = np.where(is_other, np.arange(1, length + 1), 0).max(1)
    return np.asarray(last + 1, np.int64)
