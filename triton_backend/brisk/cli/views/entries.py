"""Texts about entries of a repository: a model's ``config.pbtxt``, and a pipeline's parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from google.protobuf import text_format

from brisk.cli.views.model_files import model_file
from brisk.cli.views.segments import size_text
from brisk.errors import InvalidConfigurationError, counted
from brisk.pipelines import read_pipeline
from brisk.protocol.datatypes import BY_ELEMENT_NAME
from brisk.protocol.entry_files import is_text
from brisk.protocol.signature import NetworkSignature
from brisk.segments.model.sources import BareModel
from brisk.stub.config.completion import DEFAULT_MAX_BATCH_SIZE, complete
from brisk.stub.config.signature import model_signature
from brisk.view.entry_text import SCHEMA, as_handed_over, completed_fields, read_config


def configuration_text(model_directory: Path, default_max_batch_size: int | None = None) -> str:
    """Return a complete configuration of an entry's newest version.

    An entry without a configuration gets the one that it is served with. Otherwise the result is
    the entry's own text, followed by what it lacks. If another batch size than the entry's is
    given, its fields are kept except batching, inputs and outputs, which are completed again.

    ``default_max_batch_size``, Triton's own unless given, applies if the first dimension of every
    input and output is dynamic; else the model is served unbatched. Raises InvalidModelError if
    the file cannot be read, InvalidConfigurationError if it does not state an input or output,
    Triton lacks its type, the directory's name is no UTF-8 text, or a given batch size, other
    than 0, is none that the model can have.
    """
    written, config = read_config(model_directory)
    if default_max_batch_size not in (None, config.max_batch_size):
        for field in ("max_batch_size", "input", "output", "dynamic_batching"):
            config.ClearField(field)
        written = None
    signature = model_signature(model_file(model_directory))
    batch = DEFAULT_MAX_BATCH_SIZE if default_max_batch_size is None else default_max_batch_size
    added = SCHEMA.ModelConfig()
    if written is None:
        added.CopyFrom(config)
    if not config.name:
        added.name = _name_of(model_directory)
    if not config.backend and not config.platform:
        added.backend = "brisk"
    completed = completed_fields(signature, as_handed_over(config), batch)
    if default_max_batch_size and batch not in (config.max_batch_size, completed.max_batch_size):
        _refuse_batch(signature, config, batch)
    added.MergeFrom(completed)
    text = text_format.MessageToString(added, use_short_repeated_primitives=True)
    return text if written is None else "\n".join(filter(None, (written.rstrip(), text)))


def _refuse_batch(signature: NetworkSignature, config: Any, batch: int) -> NoReturn:
    """Raise InvalidConfigurationError with why the model cannot have a ``max_batch_size``."""
    complete(signature, {**as_handed_over(config), "max_batch_size": batch})
    raise InvalidConfigurationError(
        f"max_batch_size is {batch}, but an output's first size is not that of the model's inputs"
    )


def _name_of(model_directory: Path) -> str:
    """Return an entry's name. Raises InvalidConfigurationError if it is no UTF-8 text."""
    name = model_directory.resolve().name
    if not is_text(name):
        raise InvalidConfigurationError(
            f"the name of '{model_directory}' is no UTF-8 text, which Triton needs; rename it"
        )
    return name


def pipeline_text(path: Path) -> Iterator[str]:
    """Yield lines of text that describe a pipeline.

    Raises InvalidModelError if it or one of its networks cannot be read, or they do not fit.
    """
    description = read_pipeline(path)
    signature = model_signature(path)
    models = {file: BareModel(file, 1) for _, file in description.networks}
    yield (
        f"pipeline of {counted(len(description.nodes), 'node')}, "
        f"{description.objective_ns / 1e6:g} ms, "
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
