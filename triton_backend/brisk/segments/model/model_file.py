"""An ONNX file whose weights stay where they are.

The file is mapped by Brisk, which alone opens what an entry names (``brisk.paths``), and its
weights are views of the mapping. ONNX Runtime computes on these: nothing is parsed, copied or
written, and every process that serves the model shares the file's pages. ResNet-50 can run after
25 ms instead of 600.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from brisk.artefacts.content import ITSELF
from brisk.errors import InvalidModelError
from brisk.graph.files.element_types import GIVEN, PACKED, PACKED_BITS, dtype_of_element
from brisk.graph.files.mapping import MappedFile, map_file
from brisk.graph.files.tensors import count_elements, external_range, read_tensor
from brisk.graph.files.wire_format import MalformedMessage, detach_large_tensors
from brisk.ort_format import is_ort_format, read_ort_signature
from brisk.paths import Stamp, find_inside, shown
from brisk.segments.model.graph_names import constants_of, graphs_in, names_of
from brisk.segments.model.onnx_fields import damage_of
from brisk.segments.onnxruntime import IN_PLACE_BYTES, Weight, value_in_place
from brisk.segments.source import FileBytes

MOST_NESTED_BYTES = 1 << 30
"""The most external data of nodes and of their bodies, which is copied into the model."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model that was read, its large weights in place."""

    path: Path
    proto: ModelProto
    """The model, its large weights as references into ``files``."""
    weights: Mapping[str, Weight]
    """The large weights by name."""
    files: Mapping[str, memoryview]
    """The mapped files by their names in the model's folder."""
    stamps: Mapping[str, Stamp]
    """The files' stamps when they were mapped, the model's own as ``ITSELF``."""
    unread: memoryview | None = None
    """The whole file, if ONNX Runtime reads it by itself: one in its own format, or
    ``unread_file``; ``proto`` has only inputs and outputs then."""

    def give_weights(self, options: Any, graph: GraphProto) -> None:
        """Let a session with these ``SessionOptions`` copy the large weights of ``graph``.

        It copies them from tensors in the mapped files, which takes up to half as long as reading
        the same files in memory by itself. Types that no tensor can show are read from the files.
        ONNX Runtime knows no initializer any more that nothing reads.
        """
        is_read, weights = names_of(graph).last_use, self.weights
        names = [each.name for each in graph.initializer if each.name in weights]
        names = [name for name in names if name in is_read]
        values = {name: value_in_place(weights[name]) for name in names}
        tensors = {name: value for name, value in values.items() if value is not None}
        options.add_external_initializers(list(tensors), list(tensors.values()))
        if len(tensors) < len(names):
            self.give_to(options)

    def give_to(self, options: Any) -> None:
        """Give the mapped files to a session with these ``SessionOptions``, which opens none of
        them."""
        contents = list(self.files.values())
        options.add_external_initializers_from_files_in_memory(
            list(self.files), contents, [len(content) for content in contents]
        )

    def bytes_of(self, names: Iterable[str]) -> list[FileBytes]:
        """Return the places in the files of the named weights that are large; others are left
        out."""
        spans = [
            (_address(data), len(data), self.path.parent / name)
            for name, data in self.files.items()
            if len(data)
        ]
        places = []
        for weight in (self.weights[name] for name in names if name in self.weights):
            address = int(weight.data.ctypes.data)
            start, _, path = next(span for span in spans if span[0] <= address < span[0] + span[1])
            places.append(FileBytes(path, address - start, weight.data.nbytes))
        return sorted(places)


def read_model_file(path: Path) -> ModelFile:
    """Read a model, its large weights in place. Raises InvalidModelError naming the file and what
    is wrong with it."""
    try:
        data, stamp = map_file(path)
    except OSError as error:
        raise InvalidModelError(f"{path}: cannot be read: {error.strerror}") from error
    if not data:
        raise InvalidModelError(f"{path}: the file is empty, not an ONNX model")
    if is_ort_format(data):
        return ModelFile(path, _signature(path, data), {}, {}, {ITSELF: stamp}, data)
    try:
        rest, detached = detach_large_tensors(data, IN_PLACE_BYTES)
        proto = ModelProto.FromString(rest)
    except (MalformedMessage, DecodeError) as error:
        said = damage_of(data)
        raise InvalidModelError(f"{path}: not a complete ONNX model: {said}") from error
    if not proto.HasField("graph") or not proto.opset_import:
        raise InvalidModelError(
            f"{path}: not a complete ONNX model: it has no graph or no operator set"
        )
    try:
        refers = b"location" in rest
        return _with_weights(path, proto, MappedFile(data, stamp), detached, refers=refers)
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"{path}: a name in it is no UTF-8 text ({error})") from error


def unread_file(path: Path) -> ModelFile:
    """Return a model whose file ONNX Runtime reads itself; it has the defaults of optional inputs,
    which requests may give as well.

    Raises InvalidModelError like ``read_model_file``, and if ONNX Runtime would open other files.
    """
    file = read_model_file(path)
    if file.unread is not None or set(file.files) != {path.name}:
        raise InvalidModelError(f"{path}: ONNX Runtime is not to open other files by itself")
    graph = file.proto.graph
    sparse = {each.values.name for each in graph.sparse_initializer}
    inputs = [info for info in graph.input if info.name not in sparse]
    names = {info.name for info in inputs}
    defaults = [tensor for tensor in graph.initializer if tensor.name in names]
    shell = helper.make_graph([], graph.name or path.stem, inputs, list(graph.output), defaults)
    weights = {name: weight for name, weight in file.weights.items() if name in names}
    unread = file.files[path.name]
    proto = helper.make_model(shell, ir_version=file.proto.ir_version)
    return replace(file, proto=proto, weights=weights, files={}, unread=unread)


def is_given(info: ValueInfoProto) -> bool:
    """Whether a request can give an input of this type."""
    return info.type.tensor_type.elem_type in GIVEN


def take_defaults(file: ModelFile) -> dict[str, np.ndarray]:
    """Remove the defaults of optional inputs from ``file.proto``, and return them by name, for
    frames. Those of types that no request can give stay: the inputs are constants, which ONNX
    Runtime fuses with nothing."""
    graph = file.proto.graph
    optional = {info.name for info in graph.input if is_given(info)} & constants_of(graph)
    if not optional:
        return {}
    defaults = {}
    for tensor in graph.initializer:
        if tensor.name in optional:
            weight = file.weights.get(tensor.name)
            array = read_tensor(tensor) if weight is None else weight.array
            defaults[tensor.name] = np.array(array)
    remaining = [tensor for tensor in graph.initializer if tensor.name not in optional]
    del graph.initializer[:]
    graph.initializer.extend(remaining)
    return defaults


def _with_weights(
    path: Path,
    proto: ModelProto,
    itself: MappedFile,
    detached: Mapping[int, memoryview],
    *,
    refers: bool,
) -> ModelFile:
    """Return the model with its large weights. ``refers``: whether any tensor may be kept in
    another file."""
    proto.ClearField("training_info")  # nothing of it is served, nor opened
    files = {path.name: itself}
    weights: dict[str, Weight] = {}
    names: set[str] = set()
    start = _address(itself.data)
    for position, tensor in enumerate(proto.graph.initializer):
        if tensor.name in names:  # ONNX Runtime takes the first or the last of them
            raise InvalidModelError(f"{path}: initialiser '{shown(tensor.name)}' is given twice")
        names.add(tensor.name)
        if tensor.data_location == TensorProto.EXTERNAL:  # whatever else it holds
            raw = _external(path, tensor, files)
            tensor.ClearField("raw_data")
        elif position in detached:
            raw = detached[position]
            _refer(tensor, path.name, _address(raw) - start, len(raw))
        else:
            continue
        weight = _weight(path, tensor, raw)
        if len(raw):
            weights[tensor.name] = weight
        else:
            _write_into(tensor, raw)
    nested_bytes = 0
    for tensor in nested_tensors(proto) if refers else ():
        if tensor.data_location == TensorProto.EXTERNAL:
            raw = _external(path, tensor, files)
            _weight(path, tensor, raw)
            nested_bytes += len(raw)
            if nested_bytes > MOST_NESTED_BYTES:
                raise InvalidModelError(
                    f"{path}: tensor '{shown(tensor.name)}': nodes and bodies keep more than "
                    f"{MOST_NESTED_BYTES} bytes of external data; make them initialisers"
                )
            _write_into(tensor, raw)
    stamps = {name if name != path.name else ITSELF: file.stamp for name, file in files.items()}
    return ModelFile(path, proto, weights, {name: files[name].data for name in files}, stamps)


def nested_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor except the dense initializers of the main graph."""
    yield from _tensors_of_graph(proto.graph)
    for function in proto.functions:
        for node in function.node:
            yield from _tensors_of_node(node)


def _tensors_of_graph(graph: GraphProto) -> Iterator[TensorProto]:
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        yield from _tensors_of_node(node)


def _tensors_of_node(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        single = (attribute.sparse_tensor,) if attribute.HasField("sparse_tensor") else ()
        for sparse in (*single, *attribute.sparse_tensors):
            yield sparse.values
            yield sparse.indices
        for body in graphs_in(attribute):
            yield from body.initializer
            yield from _tensors_of_graph(body)


def _write_into(tensor: TensorProto, raw: memoryview) -> None:
    """Store the data in ``tensor`` itself."""
    del tensor.external_data[:]
    tensor.data_location = TensorProto.DEFAULT
    tensor.raw_data = bytes(raw)


def _signature(path: Path, data: memoryview) -> ModelProto:
    """Return a model without nodes that has the inputs and outputs of ``data``, in ORT format."""
    try:
        signature = read_ort_signature(data)
    except InvalidModelError as error:
        raise InvalidModelError(f"{path}: {error}") from error
    inputs, outputs = (
        [helper.make_tensor_value_info(each.name, each.element, each.shape) for each in tensors]
        for tensors in (signature.inputs, signature.outputs)
    )
    graph = helper.make_graph([], path.stem, inputs, outputs)
    return helper.make_model(graph)


def _address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def _refer(tensor: TensorProto, name: str, offset: int, size: int) -> None:
    """Make ``tensor`` refer to ``size`` bytes at ``offset`` of the file ``name``."""
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", name), ("offset", str(offset)), ("length", str(size))):
        tensor.external_data.add(key=key, value=value)


def _external(path: Path, tensor: TensorProto, files: dict[str, MappedFile]) -> memoryview:
    """Return a tensor's data in another file of the model's folder, which is mapped into
    ``files``."""
    label = f"{path}: tensor '{shown(tensor.name)}'"
    try:
        location, offset, length = external_range(tensor)
    except InvalidModelError as error:
        raise InvalidModelError(f"{path}: {error}") from error
    if location not in files:
        file = find_inside(path.parent, location, f"{label}: external data")
        if file is None or file.is_dir():
            raise InvalidModelError(f"{label} refers to external data '{location}': no such file")
        try:
            files[location] = map_file(file)
        except OSError as error:
            raise InvalidModelError(
                f"{label}: external data '{location}' cannot be read: {error.strerror}"
            ) from error
    data = files[location].data
    end = offset + (length or _needed_bytes(path, tensor))
    if not 0 <= offset <= end <= len(data):
        raise InvalidModelError(
            f"{label} needs bytes {offset} to {end} of external data '{location}', which ends at "
            f"{len(data)}"
        )
    return data[offset:end]


def _weight(path: Path, tensor: TensorProto, raw: memoryview) -> Weight:
    needed_bytes = _needed_bytes(path, tensor)
    if tensor.data_type not in PACKED and len(raw) != needed_bytes:
        raise InvalidModelError(
            f"{path}: tensor '{shown(tensor.name)}' of shape {list(tensor.dims)} needs "
            f"{needed_bytes} bytes, the file holds {len(raw)}"
        )
    return Weight(tensor.name, np.frombuffer(raw, np.uint8), tensor.data_type, tuple(tensor.dims))


def _needed_bytes(path: Path, tensor: TensorProto) -> int:
    """Return the size of a tensor's raw data by its shape and type."""
    label = f"{path}: tensor '{shown(tensor.name)}'"
    count = count_elements(tensor, label)
    try:
        item_bytes = dtype_of_element(tensor.data_type).itemsize
    except (KeyError, TypeError) as error:
        raise InvalidModelError(f"{label} has unknown element type {tensor.data_type}") from error
    if tensor.data_type == TensorProto.STRING:
        raise InvalidModelError(f"{label} holds strings as raw data, which ONNX forbids")
    item_bits = PACKED_BITS.get(tensor.data_type, item_bytes * 8)
    return (count * item_bits + 7) // 8
