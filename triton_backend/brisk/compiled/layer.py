"""One large layer as C++ reads it: ``source/layer.h`` and ``attention.h``, field by field."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

BY_CHANNEL = -1
"""The unit of a depthwise convolution."""

MOST_TAPS = 128
"""Of a depthwise convolution: as many as its code has places for."""

_Pair = c_int32 * 2
_Strides = c_int64 * 3


class LayerEntry(ctypes.Structure):
    _fields_ = (
        *(("unit", c_int32), ("activation", c_int32), ("channels", c_int32)),
        *(("outputs", c_int32), ("alpha", c_float), ("beta", c_float), ("kernel", _Pair)),
        *(("stride", _Pair), ("dilation", _Pair), ("before", _Pair)),
        *(("weights", c_void_p), ("bias", c_void_p)),
    )


class AttentionEntry(ctypes.Structure):
    """Strides are of batch, head and row; the mask's last one, of keys, is 0 or 1."""

    _fields_ = (
        *(("batch", c_int32), ("heads", c_int32), ("queries", c_int32), ("keys", c_int32)),
        *(("width", c_int32), ("value_width", c_int32), ("scale", c_float), ("padding", c_int32)),
        *(("query", _Strides), ("key", _Strides), ("value", _Strides), ("target", _Strides)),
        ("mask", c_int64 * 4),
    )
