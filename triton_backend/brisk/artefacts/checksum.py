"""Checksums of blobs and files, fast enough to be computed each time one is read.

Whole pages are reduced to the sum of their 64-bit words, modulo 2**64, and those sums with the
bytes behind the last whole page are hashed by BLAKE2, which alone reaches 1 GB/s. Every change
within one word of a page is seen, so is a page lost, zeroed, moved or cut off; random damage to
several words of one page passes with probability 2**-64.

``checksum``, of a blob that Brisk has written, adds words as they are, 10 ms for 100 MB that are
mapped: words that merely changed places within a page are not seen. ``checksum_of_file``, of a
model that somebody may have exchanged for another one, multiplies words and their upper halves by
odd numbers that belong to their places (multilinear hashing). Both are against damage and
mistakes, not against an author.
"""

from __future__ import annotations

import functools
import hashlib
from io import BufferedIOBase
from typing import BinaryIO, cast

import numpy as np

PAGE_BYTES = 4096
_PAGE_WORDS = PAGE_BYTES // 8

_BLOCK_BYTES = 256 * PAGE_BYTES
"""Of a file, read at a time."""


def checksum(content: bytes | np.ndarray) -> str:
    """Sixteen hexadecimal digits. ``content`` is contiguous and starts at a multiple of 8."""
    data = np.frombuffer(content, np.uint8)
    whole = data.size // PAGE_BYTES * PAGE_BYTES
    digest = hashlib.blake2b(data.size.to_bytes(8, "little"), digest_size=8)
    digest.update(np.add.reduce(_pages(data[:whole]), axis=1, dtype=np.uint64).data)
    digest.update(data[whole:].data)
    return digest.hexdigest()


def checksum_of_file(file: BinaryIO) -> str:
    """32 hexadecimal digits of all that is left to read. Raises OSError."""
    block = np.empty(_BLOCK_BYTES, np.uint8)
    digest = hashlib.blake2b(digest_size=16)
    size = 0
    while filled := cast("BufferedIOBase", file).readinto(block.data):  # less at the end alone
        whole = filled // PAGE_BYTES * PAGE_BYTES
        pages = _pages(block[:whole])
        upper = pages >> np.uint64(32)  # where two changed signs, 2**63 each, would add to nothing
        for words, multipliers in zip((pages, upper), _multipliers(), strict=True):
            digest.update((words @ multipliers).data)
        digest.update(block[whole:filled].data)
        size += filled
    digest.update(size.to_bytes(8, "little"))
    return digest.hexdigest()


def _pages(data: np.ndarray) -> np.ndarray:
    """The words of the whole pages that ``data`` consists of: uint64 ``[pages, words]``."""
    return data.view(np.uint64).reshape(-1, _PAGE_WORDS)


@functools.cache
def _multipliers() -> np.ndarray:
    """Two rows of odd numbers, one for each word of a page: SplitMix64 of its place (Steele, Lea
    and Flood 2014).
    """
    places = np.arange(1, 2 * _PAGE_WORDS + 1, dtype=np.uint64).reshape(2, _PAGE_WORDS)
    mixed = places * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)
