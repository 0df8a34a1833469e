"""Inputs and outputs of an entry, be it a model or a pipeline of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from brisk.errors import InvalidModelError
from brisk.pipelines import (
    NetworkSignature,
    TensorType,
    check_networks,
    is_pipeline,
    read_pipeline,
)
from brisk.protocol.datatypes import BY_ELEMENT_NAME
from brisk.stub.config.onnx_signature import ModelSignature, TensorSignature, read_signature


def model_signature(path: Path) -> ModelSignature:
    """Of an ONNX file, or of a pipeline, whose networks are read and checked.

    Raises InvalidModelError where a file is no complete model, or the networks do not fit.
    """
    if not is_pipeline(path):
        return read_signature(path)
    description = read_pipeline(path)
    networks = {}
    for words, file in description.networks:
        if file not in networks:
            try:
                networks[file] = _network(read_signature(file))
            except InvalidModelError as error:
                raise InvalidModelError(f"{words}: {error}") from error
    whole = check_networks(description, networks)
    return ModelSignature(tuple(_named(whole.inputs)), tuple(_named(whole.outputs)))


def _network(signature: ModelSignature) -> NetworkSignature:
    return NetworkSignature(_types(signature.inputs), _types(signature.outputs))


def _types(tensors: Iterable[TensorSignature]) -> dict[str, TensorType]:
    return {
        tensor.name: TensorType(
            tensor.datatype.element_name,
            None
            if tensor.shape is None
            else tuple(None if size < 0 else size for size in tensor.shape),
        )
        for tensor in tensors
    }


def _named(types: Mapping[str, TensorType]) -> Iterable[TensorSignature]:
    for name, kind in types.items():
        datatype = BY_ELEMENT_NAME.get(kind.element or "")
        if datatype is None:
            raise InvalidModelError(f"the variants disagree about the datatype of '{name}'")
        shape = None
        if kind.shape is not None:
            shape = tuple(-1 if size is None else size for size in kind.shape)
        yield TensorSignature(name, datatype, shape)
