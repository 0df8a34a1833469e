"""Entries of a repository in words: a model's ``config.pbtxt``, what a pipeline is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from google.protobuf import text_format

from brisk.cli.commands.models import model_file
from brisk.errors import BriskError, InvalidModelError
from brisk.graph.program import ContainerKind, Dimension, Program, ValueType, Variable
from brisk.graph.reader import read_program
from brisk.pipelines import (
    NetworkSignature,
    PipelineDescription,
    TensorType,
    check_networks,
    is_pipeline,
    read_pipeline,
)
from brisk.protocol.datatypes import BY_ELEMENT_NAME, config_name
from brisk.view.entry_text import SCHEMA

Variables = tuple[tuple[Variable, ...], tuple[Variable, ...]]


def configuration_text(model_directory: Path, max_batch_size: int) -> str:
    """A complete configuration of the newest version.

    ``max_batch_size`` applies where the first dimension of every input and output is dynamic;
    else the model is served unbatched. Raises InvalidModelError where the file cannot be read
    or has an input or output that Triton has no type for.
    """
    path = model_file(model_directory)
    if is_pipeline(path):
        inputs, outputs = pipeline_variables(path)
    else:
        program = read_program(path)
        inputs, outputs = program.inputs, program.outputs
    batch = max_batch_size if is_batchable(inputs, outputs) else 0
    config = SCHEMA.ModelConfig(
        name=model_directory.resolve().name, backend="brisk", max_batch_size=batch
    )
    for kind, variables in (("input", inputs), ("output", outputs)):
        for variable in variables:
            shape = _known_shape(variable, kind)[1 if batch else 0 :]
            sizes = [size if isinstance(size, int) and size > 0 else -1 for size in shape]
            tensor = getattr(config, kind).add(
                name=variable.name, data_type=_data_type(variable, kind), dims=sizes or [1]
            )
            if not sizes:
                tensor.reshape.SetInParent()  # to no dimension: Triton has no tensors of rank 0
            if kind == "input":
                tensor.optional = variable.optional
    return text_format.MessageToString(config, use_short_repeated_primitives=True)


def is_batchable(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> bool:
    """True when the first dimension of all inputs and outputs is dynamic, and the same one."""
    names: set[Dimension] = set()
    for variable in inputs:
        shape = variable.type.shape
        if not shape or isinstance(shape[0], int):
            return False
        names.add(shape[0])
    if len(names - {None}) > 1 or not inputs:
        return False
    shapes = [variable.type.shape for variable in outputs]
    return all(shape and not isinstance(shape[0], int) for shape in shapes)


def _known_shape(variable: Variable, kind: str) -> tuple[Dimension, ...]:
    if variable.type.container is not ContainerKind.TENSOR:
        raise InvalidModelError(
            f"{kind} '{variable.name}' is a {variable.type.container.value}; "
            "Triton serves only tensors"
        )
    if variable.type.shape is None:
        raise InvalidModelError(
            f"{kind} '{variable.name}' has no known rank; write its dims into config.pbtxt by hand"
        )
    return variable.type.shape


def _data_type(variable: Variable, kind: str) -> str:
    datatype = BY_ELEMENT_NAME.get(variable.type.dtype or "")
    if datatype is None:
        raise InvalidModelError(
            f"{kind} '{variable.name}' has element type {variable.type.dtype}, "
            "which Triton does not know"
        )
    return config_name(datatype)


# Pipelines.


def pipeline_variables(path: Path) -> Variables:
    """Inputs and outputs of the pipeline at ``path``.

    Raises InvalidModelError where it or a network of it cannot be read, or they do not fit.
    """
    description = read_pipeline(path)
    signature = _signature(description, _programs(description))
    return _variables_of(signature.inputs), _variables_of(signature.outputs)


def pipeline_text(path: Path) -> Iterator[str]:
    """The pipeline in words, a line each. Raises as ``pipeline_variables`` does."""
    description = read_pipeline(path)
    programs = _programs(description)
    signature = _signature(description, programs)
    yield (
        f"pipeline of {len(description.nodes)} nodes, {description.objective_ns / 1e6:g} ms, "
        f"{description.policy} split, {description.replanning} planning"
    )
    for kind, types in (("input", signature.inputs), ("output", signature.outputs)):
        yield from (f"  {kind} {name}: {type_}" for name, type_ in types.items())
    for node in description.nodes:
        sources = ", ".join(f"{tensor} = {source}" for tensor, source in node.inputs.items())
        yield f"node {node.name} ({sources})"
        if node.early_answer is not None:
            early = node.early_answer
            sure = f"taken where every row of {early.confidence} reaches {early.at_least:g}"
            yield f"  early answer: {_size(programs[early.path])}, {sure}: {early.path}"
        for variant in sorted(node.variants, key=lambda variant: variant.accuracy):
            size = _size(programs[variant.path])
            yield f"  {variant.name}: accuracy {variant.accuracy:g}, {size}: {variant.path}"
    yield "brisk explain FILE.onnx shows the segments of a network"


def _programs(description: PipelineDescription) -> dict[Path, Program]:
    programs: dict[Path, Program] = {}
    for words, path in description.networks:
        if path not in programs:
            try:
                programs[path] = read_program(path)
            except BriskError as error:
                raise type(error)(f"{words}: {error}") from error
    return programs


def _signature(
    description: PipelineDescription, programs: Mapping[Path, Program]
) -> NetworkSignature:
    return check_networks(
        description,
        {
            path: NetworkSignature(_types(program.inputs), _types(program.outputs))
            for path, program in programs.items()
        },
    )


def _types(variables: Sequence[Variable]) -> dict[str, TensorType]:
    return {
        variable.name: TensorType(
            variable.type.dtype,
            None
            if variable.type.shape is None
            else tuple(size if isinstance(size, int) else None for size in variable.type.shape),
            variable.optional,
        )
        for variable in variables
    }


def _variables_of(types: Mapping[str, TensorType]) -> tuple[Variable, ...]:
    """Dynamic first sizes are the batch, one for all."""
    variables = []
    for name, kind in types.items():
        shape: tuple[Dimension, ...] | None = kind.shape
        if shape and shape[0] is None:
            shape = ("batch", *shape[1:])
        variables.append(Variable(name, ValueType(kind.element, shape)))
    return tuple(variables)


def _size(program: Program) -> str:
    weights_bytes = sum(array.nbytes for array in program.weights.values())
    count = sum(math.prod(array.shape) for array in program.weights.values())
    return f"{len(program.layers)} layers, {count:,} weights ({weights_bytes / 1e6:.1f} MB)"
