"""A pipeline entry for the commands: what it takes and gives, and what it is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from brisk.errors import BriskError
from brisk.graph.program import Program, ValueType, Variable
from brisk.graph.reader import read_program
from brisk.pipelines import (
    NetworkSignature,
    PipelineDescription,
    TensorType,
    check_networks,
    read_pipeline,
)

Variables = tuple[tuple[Variable, ...], tuple[Variable, ...]]


def pipeline_variables(path: Path) -> Variables:
    """Inputs and outputs of the pipeline at ``path``.

    Raises InvalidModelError where it or a network of it cannot be read, or they do not fit.
    """
    description = read_pipeline(path)
    signature = check_networks(description, _signatures(_programs(description)))
    return _variables(signature.inputs), _variables(signature.outputs)


def pipeline_text(path: Path) -> Iterator[str]:
    """The pipeline in words, a line each. Raises as ``pipeline_variables`` does."""
    description = read_pipeline(path)
    programs = _programs(description)
    signature = check_networks(description, _signatures(programs))
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


def _signatures(programs: Mapping[Path, Program]) -> dict[Path, NetworkSignature]:
    def types(variables: Sequence[Variable]) -> dict[str, TensorType]:
        return {
            variable.name: TensorType(
                variable.type.dtype,
                None
                if variable.type.shape is None
                else tuple(s if isinstance(s, int) else None for s in variable.type.shape),
                variable.optional,
            )
            for variable in variables
        }

    return {
        path: NetworkSignature(types(program.inputs), types(program.outputs))
        for path, program in programs.items()
    }


def _variables(types: Mapping[str, TensorType]) -> tuple[Variable, ...]:
    """Dynamic first sizes are the batch, one for all."""
    return tuple(
        Variable(name, ValueType(kind.element, _dimensions(kind.shape)))
        for name, kind in types.items()
    )


def _dimensions(shape: tuple[int | None, ...] | None) -> tuple[int | str | None, ...] | None:
    if not shape:
        return shape
    return ("batch" if shape[0] is None else shape[0], *shape[1:])


def _size(program: Program) -> str:
    weights_bytes = sum(array.nbytes for array in program.weights.values())
    count = sum(math.prod(array.shape) for array in program.weights.values())
    return f"{len(program.layers)} layers, {count:,} weights ({weights_bytes / 1e6:.1f} MB)"
