"""Stands before Triton's module of this name in a stub that serves Brisk.

Triton's stub imports the module before it asks for the model, and the module imports numpy: longer
than all else in the start of a stub. Here Triton's own file is run when something in it is first
asked for. The stub adds its classes (``Tensor``, ``Logger`` ...) by itself, and they are all that
Brisk uses, so numpy is imported while the model is loading (``brisk.stub.backend``). A stub
that asks for more than the two functions below before that has what it always had.
"""

from __future__ import annotations

import sys
import threading
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

_NAME = __name__
_STANDING_IN = ("serialize_byte_tensor", "deserialize_bytes_tensor")
_lock = threading.RLock()
_is_run = False

get_model_dir: Any = None
"""The stub's, which looks whether there is one before it makes its own."""


def serialize_byte_tensor(input_tensor: Any) -> Any:
    """Triton's; replaced by it at the first call."""
    return _triton("serialize_byte_tensor")(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
    """Triton's; replaced by it at the first call."""
    return _triton("deserialize_bytes_tensor")(encoded_tensor)


def __getattr__(name: str) -> Any:
    """What neither the stub nor this file has given the module."""
    if name.startswith("__"):
        raise AttributeError(f"module '{_NAME}' has no attribute '{name}'")
    return _triton(name)


def _triton(name: str) -> Any:
    """What Triton's file calls ``name``; raises AttributeError where it has nothing of it."""
    global _is_run
    with _lock:
        if not _is_run:
            _run()
            _is_run = True
    try:
        return globals()[name]
    except KeyError:
        raise AttributeError(f"module '{_NAME}' has no attribute '{name}'") from None


def _run() -> None:
    """Run Triton's file in this module; what the stub has added to it meanwhile stays.

    Raises ImportError where the file is not on the module path.
    """
    added = {name: value for name, value in globals().items() if name not in _STANDING_IN}
    exec(SourceFileLoader(_NAME, str(_file())).get_code(_NAME), globals())  # type: ignore[arg-type]
    globals().update(added)


def _file() -> Path:
    for directory in sys.path:
        file = Path(directory, f"{_NAME}.py")
        if file.is_file() and not file.samefile(__file__):
            return file
    raise ImportError(f"Triton's own {_NAME}.py is not on the module path: {sys.path}")
