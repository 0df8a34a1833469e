"""Triton's datatypes: their names, sizes and how numpy and ONNX call them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Datatype(NamedTuple):
    """``name`` as on the wire; ``element_name`` as in a program (``float32`` …).

    ``numpy``: element type in shared memory; BF16 travels as uint16 bit patterns because numpy
    has no such type. ``item_bytes`` is 0 for BYTES, whose elements vary.
    """

    name: str
    element_name: str
    numpy: np.dtype
    item_bytes: int


def _fixed(name: str, element_name: str, storage: str) -> Datatype:
    dtype = np.dtype(storage)
    return Datatype(name, element_name, dtype, dtype.itemsize)


DATATYPES: dict[str, Datatype] = {
    datatype.name: datatype
    for datatype in (
        _fixed("BOOL", "bool", "bool"),
        _fixed("UINT8", "uint8", "uint8"),
        _fixed("UINT16", "uint16", "uint16"),
        _fixed("UINT32", "uint32", "uint32"),
        _fixed("UINT64", "uint64", "uint64"),
        _fixed("INT8", "int8", "int8"),
        _fixed("INT16", "int16", "int16"),
        _fixed("INT32", "int32", "int32"),
        _fixed("INT64", "int64", "int64"),
        _fixed("FP16", "float16", "float16"),
        _fixed("FP32", "float32", "float32"),
        _fixed("FP64", "float64", "float64"),
        _fixed("BF16", "bfloat16", "uint16"),
        Datatype("BYTES", "string", np.dtype(object), 0),
    )
}

BY_ELEMENT_NAME: dict[str, Datatype] = {
    datatype.element_name: datatype for datatype in DATATYPES.values()
}


def config_name(datatype: Datatype) -> str:
    """The name used in ``config.pbtxt``: ``TYPE_FP32``, ``TYPE_STRING`` …"""
    return "TYPE_STRING" if datatype.name == "BYTES" else f"TYPE_{datatype.name}"


def from_config_name(name: str) -> Datatype | None:
    """The datatype of ``TYPE_…``; None where the name is unknown."""
    if name == "TYPE_STRING":
        return DATATYPES["BYTES"]
    return DATATYPES.get(name.removeprefix("TYPE_"))
