"""Rows in files without names, where they are more than should be in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

import numpy as np

MOST_WAITING_BYTES = 16 << 20
"""The most bytes of one array's rows that are in memory before they are written."""


class Rows:
    """Rows of one type and shape, appended part by part, then read as one array.

    With a ``folder`` many of them are written to a file there that has no name, which the array
    maps: the kernel takes its pages from memory as it needs them, and removes the file with the
    array.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._parts: list[np.ndarray] = []
        self._waiting_bytes = 0
        self._count = 0
        self._file: IO[bytes] | None = None

    def append(self, part: np.ndarray) -> None:
        """Append rows [rows, ...]. Raises OSError if they cannot be written."""
        self._parts.append(part)
        self._count += len(part)
        self._waiting_bytes += part.nbytes
        if self._folder is not None and self._waiting_bytes > MOST_WAITING_BYTES:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            self._write(self._file)

    def joined(self) -> np.ndarray:
        """Return all rows, [rows, ...]. Precondition: some part was appended. Raises OSError."""
        if self._file is None:
            return np.concatenate(self._parts)
        with self._file as file:
            self._write(file)
            like = self._parts[0]
            shape = self._count, *like.shape[1:]
            return np.memmap(file, like.dtype, "r", shape=shape).view(np.ndarray)

    def _write(self, file: IO[bytes]) -> None:
        for part in self._parts:
            np.ascontiguousarray(part, self._parts[0].dtype).tofile(file)
        file.flush()
        self._parts = [self._parts[0][:0].copy()]
        self._waiting_bytes = 0
