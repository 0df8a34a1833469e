"""oneDNN's opaque tensors as bytes and back, without copying and without a compiler.

torch has no Python constructor for such a tensor over given memory, but its library exports the
one that compiled models use (``torch/csrc/inductor/aoti_torch/c/shim.h``); the serialised memory
descriptor comes from ``mkldnn::_get_mkldnn_serialized_md``. Both are torch's own affair, so a
process that keeps such tensors tries the way there and back before, and where it does not give the
same bits in the same place, nothing is said to be supported and weights are kept as they were. A
process of the same torch on the same machine need not try again, which would be 10 to 14 ms of its
first answer.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brisk.errors import ArtefactError, InternalError

_ALIGNMENT = 64
_UNNAMED = None
_API = ctypes.pythonapi
_API.PyCapsule_GetPointer.restype = ctypes.c_void_p
_API.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_API.PyCapsule_New.restype = ctypes.py_object
_API.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@dataclass(frozen=True, slots=True)
class OpaqueContent:
    """``content``: the tensor's bytes, a view of its memory; ``metadata``: oneDNN's descriptor."""

    content: np.ndarray
    metadata: np.ndarray


def is_opaque(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch._mkldnn  # type: ignore[attr-defined]  # torch exports it


@functools.cache
def is_supported() -> bool:
    """Whether opaque tensors can be kept and made anew here; tried once."""
    try:
        return _round_trip_is_exact()
    except (AttributeError, OSError, RuntimeError, TypeError, InternalError):
        return False


@functools.cache
def is_mappable() -> bool:
    """Whether what ``is_supported`` found in another process of this torch can be relied upon."""
    try:
        return bool(_library() and torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr)
    except (AttributeError, OSError):
        return False


def opaque_content(tensor: torch.Tensor) -> OpaqueContent:
    """The bytes of an opaque tensor. Precondition: ``is_supported``, and it stays alive."""
    size = int(torch.ops.mkldnn._nbytes(tensor))
    metadata = torch.ops.mkldnn._get_mkldnn_serialized_md(tensor).numpy()
    address = _data_pointer(tensor)
    memory = (ctypes.c_uint8 * size).from_address(address)
    return OpaqueContent(np.frombuffer(memoryview(memory), np.uint8), metadata)


def opaque_tensor(
    content: np.ndarray, metadata: np.ndarray, dtype: torch.dtype, shape: Sequence[int]
) -> torch.Tensor:
    """An opaque tensor over ``content``, in place. Precondition: ``is_supported`` here, or
    ``is_mappable`` here and ``is_supported`` where the content was made, by the same torch.

    The tensor keeps ``content`` alive. Raises ArtefactError where the descriptor asks for another
    size than ``content`` has, or the memory is not aligned.
    """
    address = content.ctypes.data
    if address % _ALIGNMENT:
        raise ArtefactError(f"opaque weights at {address:#x}, not at a multiple of {_ALIGNMENT}")
    count = len(shape)
    sizes = (ctypes.c_int64 * count)(*shape)
    strides = (ctypes.c_int64 * count)(*_row_major_strides(shape))
    handle = ctypes.c_void_p()
    text = metadata.tobytes()
    library = _library()
    status = library.aoti_torch_create_tensor_from_blob_v2(
        address, count, sizes, strides, 0, _dtype_number(dtype),
        library.aoti_torch_device_type_cpu(), 0, ctypes.byref(handle),
        library.aoti_torch_layout__mkldnn(), text, len(text),
    )  # fmt: skip
    if status or not handle.value:
        raise ArtefactError("oneDNN does not take these weights")
    capsule = _API.PyCapsule_New(handle.value, _UNNAMED, None)
    tensor: torch.Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule)
    if int(torch.ops.mkldnn._nbytes(tensor)) != content.size:
        raise ArtefactError(
            f"opaque weights of {content.size} bytes, their descriptor says "
            f"{int(torch.ops.mkldnn._nbytes(tensor))}"
        )
    tensor.memory = content  # type: ignore[attr-defined]  # torch does not know whose it is
    return tensor


def _data_pointer(tensor: torch.Tensor) -> int:
    capsule = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor)
    handle = _API.PyCapsule_GetPointer(capsule, _UNNAMED)
    pointer = ctypes.c_void_p()
    try:
        status = _library().aoti_torch_get_data_ptr(handle, ctypes.byref(pointer))
    finally:
        torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule)
    if status or not pointer.value:
        raise InternalError("an opaque tensor shows no memory")
    return pointer.value


def _row_major_strides(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return strides


def _dtype_number(dtype: torch.dtype) -> int:
    name = str(dtype).removeprefix("torch.")
    return int(getattr(_library(), f"aoti_torch_dtype_{name}")())


@functools.cache
def _library() -> Any:
    """torch's CPU library, which is loaded already. Raises OSError where it has another name."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    library = ctypes.CDLL(str(path))
    library.aoti_torch_create_tensor_from_blob_v2.argtypes = [
        ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64),
        ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.c_int32, ctypes.c_int32,
        ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int32, ctypes.c_char_p,
        ctypes.c_int64,
    ]  # fmt: skip
    library.aoti_torch_get_data_ptr.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
    return library


def _round_trip_is_exact() -> bool:
    """A small weight, there and back: in the same place, with the same answers."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    plain = torch.linspace(-1.0, 1.0, 32 * 16 * 9).reshape(32, 16, 3, 3)
    source = torch.linspace(1.0, -1.0, 16 * 36).reshape(1, 16, 6, 6)
    packed = torch.ops.mkldnn._reorder_convolution_weight(
        plain, [1, 1], [1, 1], [1, 1], 1, [1, 16, 6, 6]
    )
    kept = opaque_content(packed)
    memory = np.empty(kept.content.size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + kept.content.size]
    copy[:] = kept.content
    again = opaque_tensor(copy, kept.metadata.copy(), torch.float32, plain.shape)
    if _data_pointer(again) != copy.ctypes.data:
        return False

    def convolve(weight: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._convolution_pointwise(
            source, weight, None, [1, 1], [1, 1], [1, 1], 1, "none", [], ""
        )
        return result

    return bool(torch.equal(convolve(packed), convolve(again)))
