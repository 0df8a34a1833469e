"""Exchange of BF16 tensors between Triton and numpy, which lacks the type: DLPack through ctypes.

Layout of ``DLManagedTensor`` after the DLPack specification, version 0.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from brisk.errors import InternalError

_CPU, _BFLOAT = 1, 4


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = (
    ("dl_tensor", _DLTensor),
    ("manager_ctx", ctypes.c_void_p),
    ("deleter", _Deleter),
)

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

_NAME = b"dltensor"
_exported: dict[int, tuple[Any, ...]] = {}
"""The objects whose memory the tensors handed to Triton use, by the address of their
DLManagedTensor."""


def bits_of(capsule: object) -> np.ndarray:
    """Return a copy of a BF16 tensor's bit patterns as uint16, row-major.

    The capsule's owner keeps the memory alive meanwhile. Raises InternalError if the capsule is no
    BF16 tensor on the CPU.
    """
    address = _get_pointer(capsule, _NAME)
    tensor = _DLManagedTensor.from_address(address).dl_tensor
    kind = tensor.dtype
    if (kind.code, kind.bits, kind.lanes, tensor.device.device_type) != (_BFLOAT, 16, 1, _CPU):
        raise InternalError(f"expected BF16 on the CPU, got DLPack type {kind.code}/{kind.bits}")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(shape, np.uint16)
    buffer = memoryview((ctypes.c_uint16 * count).from_address(tensor.data + tensor.byte_offset))
    return np.frombuffer(buffer, np.uint16).reshape(shape).copy()


def capsule_of(bits: np.ndarray) -> object:
    """Return a DLPack capsule of BF16 over ``bits`` (uint16, row-major), which it keeps alive
    until its deleter is called."""
    shape = (ctypes.c_int64 * bits.ndim)(*bits.shape)
    managed = _DLManagedTensor()
    managed.dl_tensor.data = bits.ctypes.data
    managed.dl_tensor.device = _DLDevice(_CPU, 0)
    managed.dl_tensor.ndim = bits.ndim
    managed.dl_tensor.dtype = _DLDataType(_BFLOAT, 16, 1)
    managed.dl_tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _release
    _exported[ctypes.addressof(managed)] = (managed, shape, bits)
    return _new_capsule(ctypes.addressof(managed), _NAME, None)


@_Deleter  # type: ignore[untyped-decorator]  # ctypes
def _release(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)
