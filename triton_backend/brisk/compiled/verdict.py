"""What decides about a look-up as C++ reads it: ``source/verdict.h``, field by field."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_void_p

MOST_GREATEST, MOST_RANK = 16, 64
"""Probabilities that a selector sees, and dimensions of a gate, at most."""

RANK_STEP = 16
"""A gate's dimensions are a multiple of it, zeros behind its own."""


class VerdictEntry(ctypes.Structure):
    _fields_ = (
        *(("height", c_int32), ("width", c_int32), ("channels", c_int32), ("is_flat", c_int32)),
        *(("features", c_int32), ("rank", c_int32), ("classes", c_int32), ("greatest", c_int32)),
        *(("units", c_int32), ("padding", c_int32), ("outside", c_float), ("limit", c_float)),
        *(("floor", c_float), ("last_bias", c_float), ("least_logarithm", c_float)),
        *(("farthest", c_float), ("mean", c_void_p), ("scale", c_void_p), ("unit", c_void_p)),
        *(("whitening", c_void_p), ("centres", c_void_p), ("hidden", c_void_p)),
        *(("hidden_bias", c_void_p), ("last", c_void_p), ("basis", c_void_p)),
    )
