"""``--peer-backends DIR``: backends of Triton's to measure beside Brisk."""

from __future__ import annotations

import argparse
from pathlib import Path

from brisk_client.benchmarks.harness.command_line import UnusableArgumentError

ONNXRUNTIME = "onnxruntime"
"""Triton's own C++ backend."""

PEER_LIBRARY = Path(ONNXRUNTIME) / f"libtriton_{ONNXRUNTIME}.so"

_ELF = b"\x7fELF"
_EXPECTED = (
    f"expected a folder with {PEER_LIBRARY} and what that library needs beside it, as a server's "
    "own folder of backends has it"
)


def add_peers_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peer-backends",
        dest="peers",
        type=Path,
        metavar="DIR",
        help="other backends to measure, as onnxruntime/libtriton_onnxruntime.so",
    )


def peer_backends(folder: Path | None) -> list[Path]:
    """The backends in a folder such as Triton's ``backends``: NAME/libtriton_NAME.so each.

    Raises UnusableArgumentError for a folder that is not there, holds none, or holds one
    without its library.
    """
    if folder is None:
        return []
    _check_folder(folder)
    found = [
        backend
        for backend in sorted(folder.iterdir())
        if backend.is_dir() and not backend.name.startswith(".") and backend.name != "python"
    ]
    for backend in found:
        _check_library(backend)
    if not found:
        raise UnusableArgumentError(f"--peer-backends: '{folder}' holds no backend; {_EXPECTED}")
    return found


def onnxruntime_backend(folder: Path) -> Path:
    """Triton's own C++ backend in such a folder. Raises UnusableArgumentError."""
    _check_folder(folder)
    _check_library(folder / ONNXRUNTIME)
    return folder / ONNXRUNTIME


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UnusableArgumentError(f"--peer-backends: '{folder}' is no folder; {_EXPECTED}")


def _check_library(backend: Path) -> None:
    library = backend / f"libtriton_{backend.name}.so"
    if not library.is_file():
        raise UnusableArgumentError(f"--peer-backends: there is no '{library}'; {_EXPECTED}")
    with library.open("rb") as file:
        if file.read(len(_ELF)) != _ELF:
            raise UnusableArgumentError(
                f"--peer-backends: '{library}' is no shared library; {_EXPECTED}"
            )
