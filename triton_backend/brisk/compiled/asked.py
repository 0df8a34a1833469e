"""A look-up as C++ reads it: ``source/lane.h``, field by field."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_void_p


class LookUpEntry(ctypes.Structure):
    """Addresses of network, verdict and what they read and write; ``stops`` and ``is_done`` are
    set by whoever makes the look-up, ``is_done`` first."""

    _fields_ = (
        *(("network", c_void_p), ("verdict", c_void_p), ("hidden", c_void_p)),
        *(("logits", c_void_p), ("scores", c_void_p), ("near", c_void_p)),
        *(("threshold", c_float), ("rows", c_int32), ("may_stop", c_int32)),
        *(("stops", c_int32), ("is_done", c_int32)),
    )
