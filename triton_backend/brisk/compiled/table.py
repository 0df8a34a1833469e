"""The table of steps as C++ reads it: ``source/network.h``, field by field."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64
from enum import IntEnum


class Place(IntEnum):
    SCRATCH = 0
    INPUT = 1
    OUTPUT = 2


class Kind(IntEnum):
    COPY = 0
    CONVOLUTION = 1
    DEPTHWISE = 2
    MAXIMUM_POOL = 3
    AVERAGE_POOL = 4
    POINTWISE = 5
    SOFTMAX = 6
    ARGUMENT_MAXIMUM = 7
    ADAPTIVE_POOL = 8
    GATE = 9
    LAYER = 10


ACTIVATIONS = {
    "none": 0,
    "relu": 1,
    "hardtanh": 2,
    "sigmoid": 3,
    "tanh": 4,
    "swish": 5,
    "hardswish": 6,
    "leaky_relu": 7,
    "gelu": 8,
    "hardsigmoid": 9,
}
"""By oneDNN's name (see ``brisk.solutions.onednn_fusion``)."""


class TensorEntry(ctypes.Structure):
    _fields_ = (
        *(("place", c_int32), ("index", c_int32), ("offset", c_int64), ("image", c_int64)),
        *(("row", c_int64), ("column", c_int64), ("channel", c_int64), ("height", c_int32)),
        *(("width", c_int32), ("channels", c_int32), ("padding", c_int32)),
    )


_Pair = c_int32 * 2


class StepEntry(ctypes.Structure):
    _fields_ = (
        *(("kind", c_int32), ("activation", c_int32), ("has_second", c_int32)),
        *(("counts_padding", c_int32), ("alpha", c_float), ("beta", c_float)),
        *(("scale", c_float), ("shift", c_float), ("source", TensorEntry)),
        *(("second", TensorEntry), ("target", TensorEntry), ("kernel", _Pair), ("stride", _Pair)),
        *(("dilation", _Pair), ("before", _Pair)),
        *(("weights", POINTER(c_float)), ("bias", POINTER(c_float))),
        *(("unit", c_int32), ("padding", c_int32)),
    )
