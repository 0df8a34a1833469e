"""The inputs and outputs of a model: of an ONNX or ``.ort`` file, or of a pipeline of several.

ONNX files are read without the ``onnx`` package: a few fields of the protocol buffer are enough
(ModelProto.graph = 7; GraphProto.initializer = 5, input = 11, output = 12). All others are skipped
by their length, so a file of any size is read in milliseconds. If a file leaves its outputs open,
``onnx``'s shape inference completes them, in a process of the runtime's Python.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from brisk.errors import InvalidModelError
from brisk.interpreter import python_environment, runtime_python
from brisk.ort_format import is_ort_format, read_ort_signature
from brisk.paths import open_file
from brisk.protocol.entry_files import is_pipeline
from brisk.protocol.signature import NetworkSignature, Origin, TensorType
from brisk.segments.model.onnx_fields import damage_of, fields_of

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
"""The element types that Triton has a datatype for, by TensorProto.DataType's numbers."""


INFERENCE_TIMEOUT_S = 60.0


class _Stated(NamedTuple):
    """A signature as a file states it, and whether shape inference could add to it."""

    signature: NetworkSignature
    is_open: bool
    """Whether the file leaves open an output's type or rank, or whether its first size is the
    inputs' first one."""


def model_signature(path: Path) -> NetworkSignature:
    """Return the signature of an ONNX file, or of a pipeline, whose networks are read and checked.

    Shape inference adds what a file leaves open. Raises InvalidModelError if a file is no complete
    model, or the networks do not fit together.
    """

    def read(file: Path) -> NetworkSignature:
        stated = _read(file)
        return infer_outputs(file, stated.signature) if stated.is_open else stated.signature

    return _signature(path, read)


def stated_signature(path: Path) -> NetworkSignature:
    """Return the signature of a model without shape inference: outputs may lack type and shape.

    Raises InvalidModelError as ``model_signature`` does.
    """
    return _signature(path, read_signature)


def _signature(path: Path, read: Callable[[Path], NetworkSignature]) -> NetworkSignature:
    if not is_pipeline(path):
        return read(path)
    from brisk.pipelines import check_networks, read_pipeline  # which are long to import

    description = read_pipeline(path)
    networks: dict[Path, NetworkSignature] = {}
    for words, file in description.networks:
        if file not in networks:
            try:
                networks[file] = read(file)
            except InvalidModelError as error:
                raise InvalidModelError(f"{words}: {error}") from error
    signature = check_networks(description, networks)
    for name, kind in (*signature.inputs.items(), *signature.outputs.items()):
        if kind.element is None:
            raise InvalidModelError(
                f"the variants disagree about the datatype of '{name}', or do not say it"
            )
    return signature


def dims_of(shape: Sequence[int | None]) -> list[int]:
    """Return the sizes in the form of ``config.pbtxt``: -1 for a dynamic or unknown one."""
    return [-1 if size is None else size for size in shape]


def model_dims(tensor: Mapping[str, Any]) -> list[int]:
    """Return the sizes, without the batch, in which the model gets or gives a configured tensor:
    those of its ``reshape``, else its ``dims``."""
    if (reshape := tensor.get("reshape")) is not None:
        return [int(size) for size in reshape.get("shape", ())]
    return [int(size) for size in tensor.get("dims", ())]


def read_signature(path: Path) -> NetworkSignature:
    """Return the signature that a file states; inputs that are also initializers are optional.

    Raises InvalidModelError if the file is no complete ONNX model of tensors.
    """
    return _read(path).signature


def _read(path: Path) -> _Stated:
    try:
        with open_file(path) as file:
            if not os.fstat(file.fileno()).st_size:
                raise InvalidModelError(f"{path}: the file is empty, not an ONNX model")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                outcome = _model(memoryview(data).toreadonly())
    except OSError as error:
        raise InvalidModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    if isinstance(outcome, str):
        raise InvalidModelError(f"{path}: {outcome}")
    return outcome


def _model(data: memoryview) -> _Stated | str:
    """Return the signature, or an error text.

    Does not raise: an exception would keep frames with views of the file, so that the mapping
    could not be closed.
    """
    try:
        if is_ort_format(data):  # ONNX Runtime has inferred all that it states
            own = read_ort_signature(data)
            inputs, outputs = (
                {each.name: _kind(each.name, each.element, each.shape) for each in tensors}
                for tensors in (own.inputs, own.outputs)
            )
            return _Stated(NetworkSignature(inputs, outputs), is_open=False)
        graphs = [value for number, value in fields_of(data) if number == 7]
        if len(graphs) != 1 or not isinstance(graphs[0], memoryview):
            return _damaged(data)
        return _graph(graphs[0])
    except InvalidModelError as error:
        return str(error)
    except (ValueError, IndexError):
        return _damaged(data)


def _damaged(data: memoryview) -> str:
    return f"not a complete ONNX model: {damage_of(data)}"


def _graph(data: memoryview) -> _Stated:
    fields: dict[int, list[memoryview]] = {5: [], 11: [], 12: []}
    for number, value in fields_of(data):
        if number in fields and isinstance(value, memoryview):
            fields[number].append(value)
    initialised = {_text(value, 8) for value in fields[5]}
    inputs: dict[str, TensorType] = {}
    outputs: dict[str, TensorType] = {}
    batches: set[int | str | None] = set()
    firsts: list[int | str | None] = []
    for value in fields[11]:
        name = _text(value, 1)
        element, sizes = _value(name, value)
        if name in initialised and element not in _ELEMENT_NAMES:
            continue  # no request can give it: a constant
        inputs[name] = _kind(name, element, sizes, is_optional=name in initialised)
        if name not in initialised and sizes:
            batches.add(sizes[0])
    for value in fields[12]:
        name = _text(value, 1)
        element, sizes = _value(name, value)
        if element:
            outputs[name] = _kind(name, element, sizes)
        else:
            outputs[name] = TensorType(None, _known(sizes))
        firsts += sizes[:1] if sizes else ()
    signature = NetworkSignature(inputs, outputs)
    unsaid = any(kind.element is None or kind.shape is None for kind in outputs.values())
    may_be_batched = _first_sizes(signature) == {None}
    return _Stated(signature, unsaid or (may_be_batched and not set(firsts) <= batches - {None}))


def _first_sizes(signature: NetworkSignature) -> set[int | None]:
    """Return the set of first sizes of required inputs and of outputs; None for a dynamic one, -1
    for a tensor without sizes."""
    needed = [kind for kind in signature.inputs.values() if not kind.is_optional]
    return {kind.shape[0] if kind.shape else -1 for kind in (*needed, *signature.outputs.values())}


def _value(name: str, data: memoryview) -> tuple[int, tuple[int | str | None, ...] | None]:
    """Return the number of a tensor's element type (0 if not stated) and its sizes (None if not
    stated). Raises InvalidModelError if the value is no tensor."""
    kind = _message(data, 2)
    tensor = _message(kind, 1)
    if tensor is None:
        if not kind:  # it has no type at all
            return 0, None
        raise InvalidModelError(f"'{name}' is not a tensor; Triton serves tensors only")
    element = next((value for number, value in fields_of(tensor) if number == 1), 0)
    shape = _message(tensor, 2)
    sizes = None if shape is None else tuple(_sizes(shape))
    return element if isinstance(element, int) else 0, sizes


def _kind(
    name: str,
    element: int,
    shape: tuple[int | str | None, ...] | None,
    *,
    is_optional: bool = False,
) -> TensorType:
    if element not in _ELEMENT_NAMES:
        raise InvalidModelError(f"'{name}' has ONNX element type {element}, unknown to Triton")
    return TensorType(_ELEMENT_NAMES[element], _known(shape), is_optional)


def _known(shape: tuple[int | str | None, ...] | None) -> tuple[int | None, ...] | None:
    if shape is None:
        return None
    return tuple(size if isinstance(size, int) and size >= 0 else None for size in shape)


def _sizes(shape: memoryview) -> Iterator[int | str | None]:
    for number, dimension in fields_of(shape):
        if number == 1 and isinstance(dimension, memoryview):
            size = next((value for field, value in fields_of(dimension) if field == 1), None)
            if size is None:
                yield _text(dimension, 2) or None
            else:
                yield size if isinstance(size, int) and size < 2**63 else None  # negative


def _message(data: memoryview | None, wanted: int) -> memoryview | None:
    for number, value in fields_of(data) if data is not None else ():
        if number == wanted and isinstance(value, memoryview):
            return value
    return None


def _text(data: memoryview, wanted: int) -> str:
    value = _message(data, wanted)
    return "" if value is None else bytes(value).decode("utf-8")


# Inference of the types and shapes of outputs that a file leaves open.


def infer_outputs(path: Path, stated: NetworkSignature) -> NetworkSignature:
    """Return ``stated``, the signature in the ONNX file at ``path``, completed by shape inference.

    Sizes from the file are kept unless the inferred rank is another. If inference fails, nothing
    is added. Waits for a process that imports ``onnx``, once for each state of the file. Raises
    InvalidModelError if the file cannot be read, or a type is unknown to Triton.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise InvalidModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    state = status.st_ino, status.st_size, status.st_mtime_ns
    try:
        types = _inferred(os.path.abspath(path), state)
    except (OSError, ValueError):
        types = {}
    outputs, origins = dict(stated.outputs), dict[str, tuple[Origin, ...]]()
    for name, (element, sizes) in types.items():
        if (kind := outputs.get(name)) is None:
            continue
        shape = kind.shape
        if sizes is not None:
            inferred = _known(tuple(sizes))
            assert inferred is not None
            if shape is None or len(shape) != len(inferred):
                shape = inferred
            shape = tuple(b if a is None else a for a, b in zip(shape, inferred, strict=True))
            origins[name] = tuple(None if isinstance(size, int) else size for size in sizes)
        if element not in (None, *_ELEMENT_NAMES.values()):
            raise InvalidModelError(f"'{name}' is of type {element}, unknown to Triton")
        outputs[name] = TensorType(kind.element or element, shape)
    return NetworkSignature(stated.inputs, outputs, origins)


@lru_cache(256)
def _inferred(path: str, state: tuple[int, ...]) -> Mapping[str, Any]:
    """Return what ``brisk.segments.model.output_types`` prints for the file, as JSON.

    Raises OSError if the program cannot be run or fails, ValueError if it prints no JSON.
    """
    import subprocess  # not needed if the model's file states everything

    command = [runtime_python(), "-m", "brisk.segments.model.output_types", path]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=python_environment(),
            cwd="/",
            timeout=INFERENCE_TIMEOUT_S,
            check=True,
        )
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from error
    inferred: Mapping[str, Any] = json.loads(ended.stdout)
    return inferred
