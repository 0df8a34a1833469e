"""Programs as JSON and blobs, without pickle: what a prepared start reads instead of ONNX."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from brisk.artefacts.arrays import ArrayRecord, KeptArrays, read_array, write_array
from brisk.artefacts.container import Container, ContainerWriter
from brisk.artefacts.deferred_nodes import DeferredNodes, Oracle
from brisk.errors import ArtefactError
from brisk.graph.program import (
    Attribute,
    Epilogue,
    Layer,
    Node,
    Program,
    ValueType,
    Variable,
)
from brisk.graph.program import (
    Container as Kind,
)


def write_program(
    program: Program, writer: ContainerWriter, weights: Mapping[str, ArrayRecord] | None = None
) -> dict[str, Any]:
    """The program as JSON. ``weights``: records of its weights that exist already."""
    known = {} if weights is None else weights
    kinds: dict[ValueType, int] = {}
    of = {name: kinds.setdefault(kind, len(kinds)) for name, kind in program.types.items()}
    return {
        "name": program.name,
        "inputs": [write_variable(variable) for variable in program.inputs],
        "outputs": [write_variable(variable) for variable in program.outputs],
        "layers": [_write_layer(layer, writer) for layer in program.layers],
        "weights": {
            name: known[name] if name in known else write_array(array, writer)
            for name, array in program.weights.items()
        },
        "kinds": [_write_type(kind) for kind in kinds],
        "types": of,
        "oracle": _write_oracle(program, writer),
        "last_use": [list(names) for names in program.last_use],
        "captures": list(program.captures),
    }


def read_program(record: Mapping[str, Any], container: Container) -> Program:
    """The program; its weights are views of the container.

    Raises ArtefactError where the record is none that ``write_program`` made.
    """
    try:
        return _read_program(record, container)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ArtefactError(f"{container.path}: no program: {error!r}") from error


def blobs_of(record: Any) -> list[int]:
    """Blobs of all arrays in a layer's record, those of its bodies included."""
    if isinstance(record, dict):
        if set(record) == {"array"}:
            content = record["array"][2]
            return [content] if isinstance(content, int) else []
        if "weights" in record:
            own = [entry[2] for entry in record["weights"].values() if isinstance(entry[2], int)]
            return own + blobs_of(record["layers"])
        return [blob for value in record.values() for blob in blobs_of(value)]
    if isinstance(record, list):
        return [blob for value in record for blob in blobs_of(value)]
    return []


def _read_program(record: Mapping[str, Any], container: Container) -> Program:
    oracle = Oracle(record["oracle"], container, _read_nodes)
    kinds = [_read_type(kind) for kind in record["kinds"]]
    layers = tuple(
        _read_layer(index, layer, container, oracle)
        for index, layer in enumerate(record["layers"])
    )
    last_use = tuple(tuple(names) for names in record["last_use"])
    if len(last_use) != len(layers):
        raise ArtefactError(f"{container.path}: {len(layers)} layers, {len(last_use)} last uses")
    return Program(
        name=record["name"],
        inputs=tuple(map(read_variable, record["inputs"])),
        outputs=tuple(map(read_variable, record["outputs"])),
        layers=layers,
        weights=KeptArrays(dict(record["weights"]), container),
        types={name: kinds[kind] for name, kind in record["types"].items()},
        last_use=last_use,
        captures=tuple(record["captures"]),
    )


def _write_type(kind: ValueType) -> list[Any]:
    shape = None if kind.shape is None else list(kind.shape)
    return [kind.dtype, shape, kind.container.value]


def _read_type(record: Any) -> ValueType:
    dtype, shape, container = record
    return ValueType(dtype, None if shape is None else tuple(shape), _KINDS[container])


_KINDS = {kind.value: kind for kind in Kind}


def write_variable(variable: Variable) -> list[Any]:
    return [variable.name, _write_type(variable.type), variable.optional]


def read_variable(record: Any) -> Variable:
    name, kind, optional = record
    return Variable(name, _read_type(kind), bool(optional))


def _is_alone(layer: Layer) -> bool:
    """Whether the layer is its main operator alone."""
    return tuple(layer.nodes) == (layer.main,)


def _write_oracle(program: Program, writer: ContainerWriter) -> int | None:
    """The nodes of layers that are more than their main operator, in a blob of their own.

    They are half of a program's text, and a start reads them only for layers without a solution.
    """
    written = {
        str(layer.index): [_write_node(node, writer) for node in layer.nodes]
        for layer in program.layers
        if not _is_alone(layer)
    }
    if not written:
        return None
    text = json.dumps(written, separators=(",", ":")).encode()
    return writer.add(np.frombuffer(text, np.uint8), is_indexed=True)


def _read_nodes(record: Any, container: Container) -> tuple[Node, ...]:
    for blob in blobs_of(record):
        container.verify(blob)
    return tuple(_read_node(node, container) for node in record)


def _write_layer(layer: Layer, writer: ContainerWriter) -> dict[str, Any]:
    return {
        "main": _write_node(layer.main, writer),
        "alone": _is_alone(layer),
        "outputs": list(layer.outputs),
        "epilogue": [
            [
                step.operator,
                _write_attributes(step.attributes, writer),
                step.operand,
                step.operand_first,
            ]
            for step in layer.epilogue
        ],
        "captures": list(layer.captures),
    }


def _read_layer(
    index: int, record: Mapping[str, Any], container: Container, oracle: Oracle
) -> Layer:
    main = _read_node(record["main"], container)
    return Layer(
        index=index,
        main=main,
        nodes=(main,) if record["alone"] else DeferredNodes(oracle, index),
        outputs=tuple(record["outputs"]),
        epilogue=tuple(
            Epilogue(operator, _read_attributes(attributes, container), operand, bool(first))
            for operator, attributes, operand, first in record["epilogue"]
        ),
        captures=tuple(record["captures"]),
    )


def _write_node(node: Node, writer: ContainerWriter) -> list[Any]:
    return [
        node.operator,
        list(node.inputs),
        list(node.outputs),
        _write_attributes(node.attributes, writer),
        node.domain,
        node.version,
        node.name,
    ]


def _read_node(record: Any, container: Container) -> Node:
    operator, inputs, outputs, attributes, domain, version, name = record
    return Node(
        operator,
        tuple(inputs),
        tuple(outputs),
        _read_attributes(attributes, container),
        domain,
        version,
        name,
    )


def _write_attributes(
    attributes: Mapping[str, Attribute], writer: ContainerWriter
) -> dict[str, Any]:
    return {name: _write_attribute(value, writer) for name, value in attributes.items()}


def _write_attribute(value: Attribute, writer: ContainerWriter) -> Any:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return [_write_attribute(item, writer) for item in value]
    if isinstance(value, np.ndarray):
        return {"array": write_array(value, writer)}
    if isinstance(value, ValueType):
        return {"type": _write_type(value)}
    if isinstance(value, Program):
        return {"program": write_program(value, writer)}
    raise ArtefactError(f"an attribute of type {type(value).__name__} cannot be kept")


def _read_attributes(record: Mapping[str, Any], container: Container) -> dict[str, Attribute]:
    return {name: _read_attribute(value, container) for name, value in record.items()}


def _read_attribute(value: Any, container: Container) -> Attribute:
    if isinstance(value, list):
        if not any(isinstance(item, (list, dict)) for item in value):
            return tuple(value)
        return tuple(_read_attribute(item, container) for item in value)  # type: ignore[return-value]
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        return _READERS[kind](content, container)
    return value


_READERS: Mapping[str, Callable[[Any, Container], Attribute]] = {
    "array": read_array,
    "type": lambda content, container: _read_type(content),
    "program": _read_program,
}
