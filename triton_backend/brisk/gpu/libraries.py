"""Loads CUDA's libraries for ONNX Runtime, and gives each cuBLAS handle its own memory.

The libraries are in separate packages (``nvidia``), where the dynamic loader does not search; a
library that is loaded here is found by those that need it later. No device is used, so a process
may fork afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
from pathlib import Path

_PATTERNS = (
    "libcudart.so.*",
    "libnvrtc.so.*",
    "libcublasLt.so.*",
    "libcublas.so.*",
    "libcurand.so.*",
    "libcufft.so.*",
    "libcudnn.so.*",
)
"""The patterns of libraries' names; libraries that others need come first."""

WORKSPACE_BYTES = 8 << 20
"""The memory of a handle; cuBLAS's own is of 32 MiB on an H100, and as fast on what was tried."""


def load_libraries() -> list[str]:
    """Load CUDA's libraries from installed packages; return the dynamic loader's names of them.

    The dynamic loader searches the usual places for libraries that no package has.
    """
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    names = []
    for pattern in _PATTERNS:
        for file in (
            each for folder in folders for each in sorted(folder.glob(f"*/lib/{pattern}"))
        ):
            with contextlib.suppress(OSError):  # of another CUDA, whose own needs are not here
                ctypes.CDLL(str(file))
                names.append(file.name)
    return names


def give_workspaces(library: Path, loaded: list[str]) -> None:
    """Give each cuBLAS handle that is made from now on its own memory.

    ``library``: what ``source/workspace.cpp`` is compiled to; without it a model that multiplies
    matrices runs whole or not at all, since its graph allocates memory (``Graph.can_be_cut``).
    Precondition: ONNX Runtime has not loaded its provider. Raises OSError if it cannot be loaded.
    """
    names = [name_of(loaded, start) for start in ("libcublas.so", "libcudart.so")]
    shim = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    shim.brisk_workspace.argtypes = ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t
    shim.brisk_workspace.restype = None
    shim.brisk_workspace(*names, WORKSPACE_BYTES)


def name_of(loaded: list[str], start: str) -> bytes:
    """Return the loaded library's name that begins with ``start``, else version 13, the newest
    that ONNX Runtime is built for."""
    default = f"{start}.13"
    return next((each for each in loaded if each.startswith(start)), default).encode()
