"""An artefact written as its parts are made: none of them stays in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from brisk.artefacts.container import (
    AT_THE_END,
    HEADER_BYTES,
    BlobPlace,
    aligned,
    header,
    manifest_text,
    sum_of,
)
from brisk.artefacts.seal import make_key

_BYTES_AT_A_TIME = 4 << 20


class ContainerDraft:
    """What ``Container`` reads, once ``finish`` has been called."""

    def __init__(self, file: BinaryIO, breathe: Callable[[], None]) -> None:
        """``file``: empty, seekable. ``breathe`` is called every few MB. Raises OSError."""
        self._file = file
        self._breathe = breathe
        self._places: list[BlobPlace] = []
        file.write(bytes(HEADER_BYTES))

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._file.tell()

    def add(self, content: np.ndarray, *, is_indexed: bool = False) -> int:
        """The number of a new blob: contiguous bytes, written at once.

        ``is_indexed``: more than numbers to compute with, to be read by ``Container.copied``.
        Raises OSError.
        """
        offset = aligned(self.size, content.size)
        self._file.write(bytes(offset - self.size))
        data = np.ascontiguousarray(content)
        for start in range(0, data.size, _BYTES_AT_A_TIME):
            self._file.write(data[start : start + _BYTES_AT_A_TIME].data)
            self._breathe()
        place = BlobPlace(offset, data.size, sum_of(_at_a_word(data), is_indexed))
        self._places.append(place)
        return len(self._places) - 1

    def finish(self, content: Any) -> None:
        """Write manifest and header, sealed with this process's key, made if need be.

        Raises OSError.
        """
        text = manifest_text(self._places, content)
        self._file.write(text)
        size = self.size
        self._file.seek(0)
        self._file.write(header(text, AT_THE_END, size, make_key()))


def _at_a_word(data: np.ndarray) -> np.ndarray:
    """Checksums are summed by words."""
    return data if data.ctypes.data % 8 == 0 else data.copy()
