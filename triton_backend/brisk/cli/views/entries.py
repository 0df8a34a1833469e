"""Entries of a repository in words: a model's ``config.pbtxt``, what a pipeline is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import starmap
from pathlib import Path

from google.protobuf import text_format

from brisk.cli.commands.models import model_file
from brisk.cli.views.segments import size_text
from brisk.errors import InvalidModelError
from brisk.graph.program import ContainerKind, Dimension, ValueType, Variable
from brisk.pipelines import TensorType, is_pipeline, read_pipeline
from brisk.protocol.datatypes import BY_ELEMENT_NAME, config_name
from brisk.segments.model.sources import BareModel
from brisk.stub.config.signature import model_signature
from brisk.view.entry_text import SCHEMA


def configuration_text(model_directory: Path, max_batch_size: int) -> str:
    """A complete configuration of the newest version.

    ``max_batch_size`` applies where the first dimension of every input and output is dynamic;
    else the model is served unbatched. Raises InvalidModelError where the file cannot be read
    or has an input or output that Triton has no type for.
    """
    path = model_file(model_directory)
    if is_pipeline(path):
        signature = model_signature(path)
        inputs = tuple(starmap(_variable, signature.inputs.items()))
        outputs = tuple(starmap(_variable, signature.outputs.items()))
    else:
        plan = BareModel(path, 1).plan
        inputs, outputs = (*plan.inputs, *plan.fixed), plan.outputs
    batch = max_batch_size if _is_batchable(inputs, outputs) else 0
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
            if batch and not sizes:
                tensor.reshape.SetInParent()  # to none, which Triton takes behind a batch alone
            if kind == "input":
                tensor.optional = variable.optional
    return text_format.MessageToString(config, use_short_repeated_primitives=True)


def _is_batchable(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> bool:
    """True when the first dimension of all inputs and outputs is dynamic, and the same one."""
    shapes = [variable.type.shape for variable in (*inputs, *outputs)]
    if not inputs or not all(shape and not isinstance(shape[0], int) for shape in shapes):
        return False
    names = {shape[0] for shape in shapes[: len(inputs)] if shape}
    return len(names - {None}) <= 1


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


def _variable(name: str, tensor: TensorType) -> Variable:
    """A dynamic first size is the batch, one for all."""
    shape: tuple[Dimension, ...] | None = tensor.shape
    if shape and shape[0] is None:
        shape = ("batch", *shape[1:])
    return Variable(name, ValueType(tensor.element, shape))


def pipeline_text(path: Path) -> Iterator[str]:
    """The pipeline in words, a line each.

    Raises InvalidModelError where it or a network of it cannot be read, or they do not fit.
    """
    description = read_pipeline(path)
    signature = model_signature(path)
    models = {file: BareModel(file, 1) for _, file in description.networks}
    yield (
        f"pipeline of {len(description.nodes)} nodes, {description.objective_ns / 1e6:g} ms, "
        f"{description.policy} split, {description.replanning} planning"
    )
    for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        for name, tensor in tensors.items():
            dims = (
                "of unknown rank"
                if tensor.shape is None
                else [size or -1 for size in tensor.shape]
            )
            yield f"  {kind} {name}: {BY_ELEMENT_NAME[tensor.element or ''].name} {dims}"
    for node in description.nodes:
        sources = ", ".join(f"{tensor} = {source}" for tensor, source in node.inputs.items())
        yield f"node {node.name} ({sources})"
        if node.early_answer is not None:
            early = node.early_answer
            sure = f"taken where every row of {early.confidence} reaches {early.at_least:g}"
            yield f"  early answer: {size_text(models[early.path])}, {sure}: {early.path}"
        for variant in sorted(node.variants, key=lambda variant: variant.accuracy):
            size = size_text(models[variant.path])
            yield f"  {variant.name}: accuracy {variant.accuracy:g}, {size}: {variant.path}"
    yield "brisk explain FILE.onnx shows the segments of a network"
