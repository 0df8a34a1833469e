"""Inputs and outputs of an entry: of an ONNX or ``.ort`` file, or of a pipeline of several.

Read without the ``onnx`` package: a few fields of the protocol buffer are enough (ModelProto.graph
= 7; GraphProto.initializer = 5, input = 11, output = 12), and everything else is skipped by its
length, so a file of any size is read in milliseconds.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from brisk.errors import InvalidModelError
from brisk.ort_format import is_ort_format, read_ort_signature
from brisk.paths import open_file
from brisk.pipelines import (
    NetworkSignature,
    TensorType,
    check_networks,
    is_pipeline,
    read_pipeline,
)

_ELEMENT_NAMES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
}
"""By TensorProto.DataType's numbers, those that Triton has a datatype for."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def model_signature(path: Path) -> NetworkSignature:
    """Of an ONNX file, or of a pipeline, whose networks are read and checked.

    Raises InvalidModelError where a file is no complete model, or the networks do not fit.
    """
    if not is_pipeline(path):
        return read_signature(path)
    description = read_pipeline(path)
    networks: dict[Path, NetworkSignature] = {}
    for words, file in description.networks:
        if file not in networks:
            try:
                networks[file] = read_signature(file)
            except InvalidModelError as error:
                raise InvalidModelError(f"{words}: {error}") from error
    signature = check_networks(description, networks)
    for name, kind in (*signature.inputs.items(), *signature.outputs.items()):
        if kind.element is None:
            raise InvalidModelError(f"the variants disagree about the datatype of '{name}'")
    return signature


def dims_of(shape: Sequence[int | None]) -> list[int]:
    """As ``config.pbtxt`` has them: -1 for a size that is dynamic or unknown."""
    return [-1 if size is None else size for size in shape]


def read_signature(path: Path) -> NetworkSignature:
    """Inputs without those that are initialisers, and outputs.

    Raises InvalidModelError where the file is no complete ONNX model of tensors.
    """
    try:
        with open_file(path) as file:
            if not os.fstat(file.fileno()).st_size:
                raise InvalidModelError(f"{path} is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                outcome = _model(memoryview(data).toreadonly())
    except OSError as error:
        raise InvalidModelError(f"{path} cannot be read: {error}") from error
    if isinstance(outcome, str):
        raise InvalidModelError(f"{path} is not a complete ONNX model: {outcome}")
    return outcome


def _model(data: memoryview) -> NetworkSignature | str:
    """The signature, or why there is none.

    An exception would keep the frames it came through, their views of the file, and so the
    mapping, which cannot be closed then.
    """
    try:
        if is_ort_format(data):
            own = read_ort_signature(data)
            inputs, outputs = (
                {each.name: _kind(each.name, each.element, each.shape) for each in tensors}
                for tensors in (own.inputs, own.outputs)
            )
            return NetworkSignature(inputs, outputs)
        graphs = [value for number, value in _fields(data) if number == 7]
        if len(graphs) != 1 or not isinstance(graphs[0], memoryview):
            return "it has no graph"
        return _graph(graphs[0])
    except (ValueError, IndexError, InvalidModelError) as error:
        return str(error)


def _graph(data: memoryview) -> NetworkSignature:
    found: dict[int, list[memoryview]] = {5: [], 11: [], 12: []}
    for number, value in _fields(data):
        if number in found and isinstance(value, memoryview):
            found[number].append(value)
    initialised = {_text(value, 8) for value in found[5]}
    inputs, outputs = (
        [(_text(value, 1), value) for value in found[number]] for number in (11, 12)
    )
    return NetworkSignature(
        {name: _value(name, value) for name, value in inputs if name not in initialised},
        {name: _value(name, value) for name, value in outputs},
    )


def _value(name: str, data: memoryview) -> TensorType:
    tensor = _message(_message(data, 2), 1)
    if tensor is None:
        raise ValueError(f"'{name}' is not a tensor; Triton serves tensors only")
    element = next((value for number, value in _fields(tensor) if number == 1), 0)
    shape = _message(tensor, 2)
    sizes = None if shape is None else tuple(_sizes(shape))
    return _kind(name, element if isinstance(element, int) else 0, sizes)


def _kind(name: str, element: int, shape: tuple[int | str | None, ...] | None) -> TensorType:
    if element not in _ELEMENT_NAMES:
        raise ValueError(f"'{name}' has ONNX element type {element}, unknown to Triton")
    if shape is None:
        return TensorType(_ELEMENT_NAMES[element], None)
    sizes = tuple(size if isinstance(size, int) and size >= 0 else None for size in shape)
    return TensorType(_ELEMENT_NAMES[element], sizes)


def _sizes(shape: memoryview) -> Iterator[int]:
    for number, dimension in _fields(shape):
        if number == 1 and isinstance(dimension, memoryview):
            size = next((value for field, value in _fields(dimension) if field == 1), -1)
            yield size if isinstance(size, int) and size < 2**63 else -1  # else it is negative


def _message(data: memoryview | None, wanted: int) -> memoryview | None:
    for number, value in _fields(data) if data is not None else ():
        if number == wanted and isinstance(value, memoryview):
            return value
    return None


def _text(data: memoryview, wanted: int) -> str:
    value = _message(data, wanted)
    return "" if value is None else bytes(value).decode("utf-8")


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Field numbers and values of a message; ValueError where it is cut short or no message."""
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise ValueError("it is no protocol buffer")
        if kind == _VARINT:
            integer, position = _varint(data, position)
            yield number, integer
            continue
        if kind == _BYTES:
            length, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("it is no protocol buffer")
        if position + length > end:
            raise ValueError(f"it ends {position + length - end} bytes too early")
        yield number, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("it ends inside a number")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
    raise ValueError("it is no protocol buffer")
