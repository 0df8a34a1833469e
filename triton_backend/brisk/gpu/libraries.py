"""CUDA's libraries, found for ONNX Runtime, and memory of their own for cuBLAS's handles.

The libraries lie in packages of their own (``nvidia``) where nobody looks; each that is loaded
here is found by whoever needs it later. Nothing of this uses a device: a process may fork after.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
from pathlib import Path

_WANTED = (
    "libcudart.so.*",
    "libnvrtc.so.*",
    "libcublasLt.so.*",
    "libcublas.so.*",
    "libcurand.so.*",
    "libcufft.so.*",
    "libcudnn.so.*",
)
"""Those that others need come first."""

WORKSPACE_BYTES = 8 << 20
"""Of a handle; cuBLAS's own is of 32 MiB on an H100, and as fast on what was tried."""


def load_libraries() -> list[str]:
    """Load those that packages have; the names that the dynamic loader has for them.

    What no package has is looked for where libraries lie, by whoever needs it.
    """
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    found = []
    for wanted in _WANTED:
        for file in (
            each for folder in folders for each in sorted(folder.glob(f"*/lib/{wanted}"))
        ):
            with contextlib.suppress(OSError):  # of another CUDA, whose own needs are not here
                ctypes.CDLL(str(file))
                found.append(file.name)
    return found


def give_workspaces(library: Path, loaded: list[str]) -> None:
    """Let each handle of cuBLAS that is made from now on have memory of its own.

    ``library``: what ``source/workspace.cpp`` is compiled to; without it a model that multiplies
    matrices runs whole or not at all, since its graph allocates memory (``Graph.can_be_cut``).
    Before ONNX Runtime loads its provider. Raises OSError where it cannot be loaded.
    """
    names = [_name(loaded, start) for start in ("libcublas.so", "libcudart.so")]
    shim = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    shim.brisk_workspace.argtypes = ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t
    shim.brisk_workspace.restype = None
    shim.brisk_workspace(*names, WORKSPACE_BYTES)


def _name(loaded: list[str], start: str) -> bytes:
    """As a package has it, else the newest that ONNX Runtime is built for."""
    default = f"{start}.13"
    return next((each for each in loaded if each.startswith(start)), default).encode()
