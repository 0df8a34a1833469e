"""The transfer of Triton's tensors to shared memory and back.

An input is copied once, from Triton's shared memory into the arena. An output is passed to Triton
as a view of the worker's arena, and Triton copies it into its response.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils

from brisk.errors import InvalidRequestError
from brisk.protocol.datatypes import DATATYPES, deserialize_strings, serialize_strings
from brisk.protocol.records import TensorForm
from brisk.stub.dlpack import bits_of, capsule_of

_ELEMENTS = {name: datatype.numpy for name, datatype in DATATYPES.items()}
_NAMES = {kind: name for name, kind in _ELEMENTS.items() if name not in ("BF16", "BYTES")}


class InputData(NamedTuple):
    """An input tensor of a request: its form and values."""

    form: TensorForm
    content: np.ndarray
    """The values in row-major order; serialized strings as uint8."""

    def write(self, memory: memoryview) -> None:
        """Copy the values into ``memory``, which must have as many bytes."""
        np.copyto(np.frombuffer(memory, self.content.dtype), self.content.reshape(-1))


def read_inputs(
    request: Any, bfloat16: Collection[str], left_out: Collection[str] = ()
) -> list[InputData]:
    """Return the request's inputs, still in Triton's memory, except those ``left_out``, which
    Triton adds and the worker does not read.

    ``bfloat16`` names those of that type. Raises InvalidRequestError for a type that Triton has no
    datatype for.
    """
    return [
        _read_input(tensor, name, name in bfloat16)
        for tensor in request.inputs()
        if (name := tensor.name()) not in left_out
    ]


def _read_input(tensor: Any, name: str, is_bfloat16: bool) -> InputData:
    if is_bfloat16:
        bits = bits_of(tensor.to_dlpack())
        return InputData(TensorForm(name, "BF16", bits.shape), bits)
    array = tensor.as_numpy()
    datatype = _NAMES.get(array.dtype)
    if datatype is not None:
        return InputData(TensorForm(name, datatype, array.shape), np.ascontiguousarray(array))
    if array.dtype.kind in "OSU":
        content = np.frombuffer(serialize_strings(array.reshape(-1)), np.uint8)
        return InputData(TensorForm(name, "BYTES", array.shape), content)
    raise InvalidRequestError(f"input '{name}' has a type of no Triton datatype: {array.dtype}")


def make_output(form: TensorForm, memory: memoryview, one: tuple[int, ...]) -> Any:
    """Return a Triton tensor over ``memory``, which must stay valid until the response is sent.

    ``one``: its shape if the model's has no sizes. Raises InvalidRequestError if serialized
    strings are damaged.
    """
    name, datatype, shape = form.name, form.datatype, form.shape or one
    if datatype == "BYTES":
        count = math.prod(shape)
        array = np.empty(count, object)
        array[:] = deserialize_strings(memory, count)
        return pb_utils.Tensor(name, array.reshape(shape))
    array = np.frombuffer(memory, _ELEMENTS[datatype]).reshape(shape)
    if datatype == "BF16":
        return pb_utils.Tensor.from_dlpack(name, capsule_of(array))
    return pb_utils.Tensor(name, array)
