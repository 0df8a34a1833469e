"""``--peer-backends DIR``: backends of Triton's to measure in addition to Brisk."""

from __future__ import annotations

import argparse
from pathlib import Path

from brisk_bench.harness.command_line import UnusableArgumentError

ONNXRUNTIME = "onnxruntime"
"""The name of Triton's own C++ backend."""

CPP = f"{ONNXRUNTIME} backend"
"""The name of Triton's own C++ backend in reports."""

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
    """Return the backends in a folder such as Triton's ``backends``: NAME/libtriton_NAME.so each.

    Raises UnusableArgumentError for a folder that does not exist, holds none, or holds one without
    its library.
    """
    if folder is None:
        return []
    _check(folder.is_dir(), f"'{folder}' is no folder")
    backends = [
        backend
        for backend in sorted(folder.iterdir())
        if backend.is_dir() and not backend.name.startswith(".") and backend.name != "python"
    ]
    _check(bool(backends), f"'{folder}' holds no backend")
    return [_checked(backend) for backend in backends]


def onnxruntime_backend(folder: Path) -> Path:
    """Return Triton's own C++ backend in such a folder. Raises UnusableArgumentError."""
    _check(folder.is_dir(), f"'{folder}' is no folder")
    return _checked(folder / ONNXRUNTIME)


def _checked(backend: Path) -> Path:
    library = backend / f"libtriton_{backend.name}.so"
    _check(library.is_file(), f"there is no '{library}'")
    with library.open("rb") as file:
        _check(file.read(len(_ELF)) == _ELF, f"'{library}' is no shared library")
    return backend


def _check(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise UnusableArgumentError(f"--peer-backends: {otherwise}; {_EXPECTED}")
