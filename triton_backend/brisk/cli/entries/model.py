"""A model's directory in a repository, and the ``config.pbtxt`` that describes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from brisk.cli.entries.pipeline import pipeline_variables
from brisk.errors import InvalidModelError
from brisk.graph.program import ContainerKind, Dimension, Variable
from brisk.graph.reader import read_program
from brisk.paths import find_inside
from brisk.pipelines import is_pipeline
from brisk.protocol.datatypes import BY_ELEMENT_NAME
from brisk.protocol.entry_files import MODEL_FILE, PIPELINE_FILE

_INDENT = "  "


def version_files(model_directory: Path) -> dict[int, Path]:
    """The file of each version, an ONNX model or a pipeline, oldest first.

    Raises InvalidModelError where there is none, or where one lies outside of its version.
    """
    files = {
        int(path.parent.name): found
        for name in (PIPELINE_FILE, MODEL_FILE)
        for path in model_directory.glob(f"*/{name}")
        if path.parent.name.isdecimal()
        and (found := find_inside(path.parent, name, "model file")) is not None
    }
    if not files:
        raise InvalidModelError(
            f"'{model_directory}' has no version: expected a file like "
            f"'{model_directory / '1' / 'model.onnx'}'"
        )
    return dict(sorted(files.items()))


def configuration_text(model_directory: Path, max_batch_size: int) -> str:
    """A complete configuration of the newest version.

    ``max_batch_size`` applies where the first dimension of every input and output is dynamic;
    else the model is served unbatched. Raises InvalidModelError where the file cannot be read
    or has an input or output that Triton has no type for.
    """
    path = list(version_files(model_directory).values())[-1]
    if is_pipeline(path):
        inputs, outputs = pipeline_variables(path)
    else:
        program = read_program(path)
        inputs, outputs = program.inputs, program.outputs
    batch = max_batch_size if is_batchable(inputs, outputs) else 0
    blocks = [
        f'name: "{model_directory.resolve().name}"',
        'backend: "brisk"',
        f"max_batch_size: {batch}",
        _variables("input", inputs, batched=batch > 0),
        _variables("output", outputs, batched=batch > 0),
    ]
    return "\n".join(blocks) + "\n"


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


def _variables(kind: str, variables: Sequence[Variable], *, batched: bool) -> str:
    entries = [_variable(variable, batched=batched, kind=kind) for variable in variables]
    body = ",\n".join(entries)
    return f"{kind} [\n{body}\n]"


def _variable(variable: Variable, *, batched: bool, kind: str) -> str:
    shape = _known_shape(variable, kind)
    sizes = [size if isinstance(size, int) and size > 0 else -1 for size in shape]
    if batched:
        sizes = sizes[1:]
    lines = [
        f'name: "{variable.name}"',
        f"data_type: {_data_type(variable, kind)}",
        f"dims: [ {', '.join(map(str, sizes or [1]))} ]",
    ]
    if not sizes:
        lines.append("reshape: { shape: [ ] }")
    if kind == "input" and variable.optional:
        lines.append("optional: true")
    body = "\n".join(_INDENT * 2 + line for line in lines)
    return f"{_INDENT}{{\n{body}\n{_INDENT}}}"


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
    return "TYPE_STRING" if datatype.name == "BYTES" else f"TYPE_{datatype.name}"
