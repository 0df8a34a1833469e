"""A session, and the weights that it computes on where they are.

Apart from what makes sessions of ONNX models (``sessions``), which needs ``onnx``: a start from a
prepared form does without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from brisk.graph.files.element_types import COMPLEX, dtype_of_element
from brisk.segments.onnxruntime.library import onnxruntime
from brisk.segments.weights import Weight

NOWHERE = ("/dev", "null")
"""Folder and file that weights in an artefact are said to lie in: ONNX Runtime looks whether the
file is there, but is given the weights themselves and never reads it."""


@dataclass(frozen=True, eq=False)  # without slots, so that it can be referred to weakly
class OrtSession:
    """``session``: an ``InferenceSession``; ``held``: the weights that it reads in place.

    ``run_options``: of each of its runs; None: nothing is said.
    """

    session: Any
    held: tuple[Any, ...]
    run_options: Any = None


_running: WeakValueDictionary[tuple[object, ...], OrtSession] = WeakValueDictionary()


def running(key: tuple[object, ...]) -> OrtSession | None:
    """The session of this process that was shared under ``key``, if somebody still runs it."""
    return _running.get(key)


def shared(key: tuple[object, ...], make: Callable[[], OrtSession]) -> OrtSession:
    """That session, or one that is made. ``key``: all that it is made from, and how."""
    found = _running.get(key)
    return _running.setdefault(key, make()) if found is None else found


def value_in_place(weight: Weight) -> Any:
    """The weight as ONNX Runtime's value, not copied; None for types of which it needs a copy."""
    if weight.is_packed or weight.kind in COMPLEX:
        return None
    make = onnxruntime().OrtValue.ortvalue_from_numpy_with_onnx_type
    dtype = dtype_of_element(weight.kind)
    # numpy has no dtype of its own for some (bfloat16, float8): their bits travel as integers
    carrier = dtype if dtype.kind != "V" else np.dtype(f"u{dtype.itemsize}")
    return make(weight.data.view(carrier).reshape(weight.shape), weight.kind)
