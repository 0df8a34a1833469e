"""Run-time values and their numpy forms; the one table of dtypes that both sides share.

torch holds every dtype it knows, with bfloat16 and the 8-bit floats seen from numpy as
``ml_dtypes`` arrays of the same bits. Strings and dtypes of fewer than 8 bits stay numpy arrays.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import torch

from brisk.graph.files.element_types import name_of_dtype

Value: TypeAlias = "torch.Tensor | np.ndarray | list[Any] | None"
"""A run-time value.

torch.Tensor on the runtime's device wherever torch has the dtype; numpy.ndarray for the rest
(``object`` arrays of str for strings, ml_dtypes arrays for 4-bit types); list for a sequence;
None for an optional value that is absent.
"""

TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "bool", "complex64", "complex128"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        "float8_e8m0fnu",
    )
    if hasattr(torch, name)
}
"""torch dtype by ONNX element type, in numpy's and ml_dtypes' names."""

DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}

_BITS: dict[torch.dtype, tuple[torch.dtype, np.dtype]] = {
    dtype: (
        torch.uint8 if dtype.itemsize == 1 else torch.int16,
        np.dtype(getattr(ml_dtypes, name)),
    )
    for name, dtype in TORCH_DTYPES.items()
    if hasattr(ml_dtypes, name)
}
"""dtypes that numpy has only through ml_dtypes, with the integer type that carries the bits."""

_OF_BITS: dict[np.dtype, torch.dtype] = {array: dtype for dtype, (_, array) in _BITS.items()}


class _Writable:
    """Shows read-only memory as writable, for torch, which only takes such arrays.

    Sound because kernels never change their operands, which is part of their contract.
    """

    def __init__(self, array: np.ndarray) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self._owner = array


def dtype_name(value: Any) -> str:
    """The ONNX element type of a tensor or array: ``float32``, ``bfloat16``, ``string`` …"""
    if isinstance(value, torch.Tensor):
        return DTYPE_NAMES[value.dtype]
    return name_of_dtype(value.dtype)


def to_numpy(value: Any) -> Any:
    """The value for numpy code; shares memory with a CPU tensor.

    A tensor becomes an array (bfloat16 and float8 as ml_dtypes arrays), a list a list of such;
    arrays, None and maps are returned as they are.
    """
    if isinstance(value, torch.Tensor):
        try:
            return value.numpy()
        except (TypeError, RuntimeError):  # elsewhere, of another dtype, or lazily negated
            pass
        tensor = value.detach().cpu()
        bits = _BITS.get(tensor.dtype)
        if bits is None:
            return tensor.resolve_conj().resolve_neg().numpy()
        carrier, array_dtype = bits
        return tensor.view(carrier).numpy().view(array_dtype)
    if isinstance(value, list):
        return [to_numpy(item) for item in value]
    return value


def from_numpy(array: Any, device: torch.device) -> Value:
    """The value that numpy code made, on ``device``; shares memory where it is the CPU.

    Takes what ``to_numpy`` gives, numpy scalars too. Read-only arrays are shared, not copied:
    the result must not be written.
    """
    if type(array) is np.ndarray:
        flags = array.flags
        if flags.c_contiguous and flags.writeable:  # the common case, at a tenth of the time
            try:
                plain = torch.from_numpy(array)
            except (TypeError, ValueError):  # of a dtype that torch knows under no numpy name
                pass
            else:
                return plain if device.type == "cpu" else plain.to(device)
    if isinstance(array, (list, tuple)):
        return [from_numpy(item, device) for item in array]
    if array is None or isinstance(array, dict):
        return array  # type: ignore[return-value]  # maps exist only inside sequences
    array = np.asarray(array)
    if array.dtype.kind in "OUS":
        return array if array.dtype.kind == "O" else array.astype(object)
    bits = _OF_BITS.get(array.dtype)
    if bits is None and name_of_dtype(array.dtype) not in TORCH_DTYPES:
        return array
    if any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
        array = np.array(array, array.dtype.newbyteorder("="))
    if bits is not None:
        array = array.view(np.uint8 if bits.itemsize == 1 else np.int16)
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))
    tensor = torch.from_numpy(array)
    if bits is not None:
        tensor = tensor.view(bits)
    return tensor if device.type == "cpu" else tensor.to(device)
