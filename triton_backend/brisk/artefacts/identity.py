"""Which model an artefact was made of: the content of its files, and a cheap stamp of their state.

The digests decide. Reading 100 MB again to digest them takes 30 ms, so a stamp (size, times,
inode) that was seen together with a digest vouches for it until it changes, as it does in each
new container.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from brisk.artefacts.checksum import checksum_of_file
from brisk.errors import InvalidModelError
from brisk.paths import open_file, open_inside

Stamp = list[int]
"""Size, modification and change time in ns, inode, device."""

RACY_NS = 50_000_000
"""A file changed this shortly ago may change again without its times showing it."""


def model_files(path: Path) -> tuple[str, ...]:
    """The model file and its external data files, relative to its directory.

    Raises InvalidModelError where the file cannot be parsed.
    """
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import external_data_helper as external

    try:
        with open_file(path) as file:
            model = onnx.load_model_from_string(file.read())
    except (DecodeError, OSError) as error:
        raise InvalidModelError(f"{path}: not an ONNX model ({error})") from error
    names = {
        external.ExternalDataInfo(tensor).location
        for tensor in external._get_all_tensors(model)
        if external.uses_external_data(tensor)
    }
    return (path.name, *sorted(names))


def identify(directory: Path, names: Sequence[str]) -> dict[str, str]:
    """The files' checksums, which tell one model from another, by their names in ``directory``.

    Raises OSError, and InvalidModelError as ``open_inside``.
    """
    digests = {}
    for name in names:
        with open_inside(directory, name, "file of the model") as file:
            digests[name] = checksum_of_file(file)
    return digests


def stamps(directory: Path, names: Sequence[str]) -> dict[str, Stamp]:
    """The files' present states.

    Raises OSError where one is missing, InvalidModelError as ``open_inside``.
    """
    states = {}
    for name in names:
        with open_inside(directory, name, "file of the model") as file:
            states[name] = stamp_of(os.fstat(file.fileno()))
    return states


def are_settled(states: Mapping[str, Stamp]) -> bool:
    """Whether every later change of the files will show in their stamps."""
    latest_ns = max(max(stamp[1], stamp[2]) for stamp in states.values())
    return time.time_ns() - latest_ns > RACY_NS


def stamp_of(status: os.stat_result) -> Stamp:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
