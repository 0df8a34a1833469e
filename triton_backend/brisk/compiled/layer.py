"""One large layer as C++ reads it: ``source/layer.h``, field by field."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_void_p

_Pair = c_int32 * 2


class LayerEntry(ctypes.Structure):
    _fields_ = (
        *(("unit", c_int32), ("activation", c_int32), ("channels", c_int32)),
        *(("outputs", c_int32), ("alpha", c_float), ("beta", c_float), ("kernel", _Pair)),
        *(("stride", _Pair), ("dilation", _Pair), ("before", _Pair)),
        *(("weights", c_void_p), ("bias", c_void_p)),
    )
