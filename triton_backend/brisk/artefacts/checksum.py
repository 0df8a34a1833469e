"""Checksums of blobs, fast enough to be verified each time a blob is mapped.

Whole pages are reduced to the sum of their 64-bit words, modulo 2**64, and those sums with the
bytes behind the last whole page are hashed: 7 to 10 GB/s where BLAKE2 alone reaches 1. Every
change within one word of a page is seen, so is a page lost, zeroed, moved or cut off; random
damage to several words of one page passes with probability 2**-64. Words that merely changed
places within a page are not seen: this is against damage, not against an author.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np

PAGE_BYTES = 4096
_PAGE_WORDS = PAGE_BYTES // 8

Buffer: TypeAlias = "bytes | bytearray | memoryview | np.ndarray"


def checksum(content: Buffer) -> str:
    """Sixteen hexadecimal digits. ``content`` is contiguous and starts at a multiple of 8."""
    data = np.frombuffer(content, np.uint8)
    return checksum_of_pages(data.size, page_sums(data), data[whole_pages(data) :])


def checksum_of_pages(size: int, sums: np.ndarray, rest: np.ndarray) -> str:
    """``checksum`` of ``size`` bytes: their pages' ``sums``, and the ``rest`` behind those."""
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=8)
    digest.update(sums.data)
    digest.update(rest.data)
    return digest.hexdigest()


def page_sums(data: np.ndarray) -> np.ndarray:
    """uint64, one for each whole page of the bytes ``data``."""
    pages = data[: whole_pages(data)].view(np.uint64).reshape(-1, _PAGE_WORDS)
    return np.add.reduce(pages, axis=1, dtype=np.uint64)


def whole_pages(data: np.ndarray) -> int:
    """Bytes of ``data`` up to the end of its last whole page."""
    return data.size // PAGE_BYTES * PAGE_BYTES
