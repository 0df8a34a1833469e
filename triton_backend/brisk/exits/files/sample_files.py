"""Files of a model's sampled inputs: written by the runtime, read by processes that learn.

A file is an ``.npz`` of arrays by ``GROUP/INPUT``; rows of one shape are a group, numbered from 0.
It is compressed: pictures as float32 take a fourth to a tenth of their size.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from brisk.exits.files.container import DamagedFileError
from brisk.exits.files.versions import make_private_folder, samples_folder

Arrays = Mapping[str, np.ndarray]
"""Inputs by name, [rows, ...]."""

FASTEST = 1
"""The level of compression: 150 MB a second of pictures; higher levels take two to three times as
long for a tenth less."""


def write_samples(model: Path, parts: Sequence[Arrays]) -> Path:
    """Write one file of all ``parts``, mode 0600, and return its path.

    Raises OSError, and ValueError if numpy has no type for a value."""
    from zipfile import ZIP_DEFLATED, ZipFile  # nobody needs it before the first samples

    make_private_folder(model)
    groups: dict[tuple[tuple[str, tuple[int, ...]], ...], list[Arrays]] = {}
    for part in parts:
        shapes = ((name, array.shape[1:]) for name, array in sorted(part.items()))
        groups.setdefault(tuple(shapes), []).append(part)
    content = {
        f"{number}/{name}": np.concatenate([part[name] for part in alike])
        for number, alike in enumerate(groups.values())
        for name in alike[0]
    }
    rows = sum(len(next(iter(part.values()))) for part in parts)
    target = samples_folder(model) / f"{time.time_ns():020d}-{os.getpid()}-{rows}.npz"
    unfinished = target.with_suffix(".unfinished")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            ZipFile(file, "w", ZIP_DEFLATED, compresslevel=FASTEST) as archive,
        ):
            for name, array in content.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(  # type: ignore[no-untyped-call]  # numpy
                        member, array, allow_pickle=False
                    )
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def delete_samples(model: Path) -> None:
    """Delete all files of samples of ``model``. Raises OSError."""
    for file in samples_folder(model).glob("*.npz"):
        file.unlink(missing_ok=True)


def count_again(file: Path, rows: int) -> None:
    """Note in the name of a file of samples that only ``rows`` of it are of use; delete it if none
    is. A file that was deleted meanwhile is ignored. Raises OSError."""
    taken_at, writer = file.stem.split("-")[:2]
    with contextlib.suppress(FileNotFoundError):
        if rows:
            file.rename(file.with_name(f"{taken_at}-{writer}-{rows}.npz"))
        else:
            file.unlink()


def read_samples_file(path: Path) -> list[dict[str, np.ndarray]]:
    """Return the inputs by name of each shape. Raises DamagedFileError, OSError."""
    import zlib
    from zipfile import BadZipFile

    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise DamagedFileError(f"it is no archive of arrays: {error}") from error
    groups = groups_of(arrays)
    if groups is None:
        raise DamagedFileError(f"its arrays {sorted(arrays)} belong to no group")
    return groups


def groups_of(arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]] | None:
    """Return the inputs by name of each shape; None: ``arrays`` are not of such a file."""
    groups: dict[str, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        group, separator, name = key.partition("/")
        if not (separator and group.isdecimal()):
            return None
        groups.setdefault(group, {})[name] = array
    return list(groups.values())
