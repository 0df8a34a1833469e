"""Reads ONNX models into programs."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import ModelProto, inliner

from brisk.errors import BriskError, InvalidModelError
from brisk.graph.assembly import Assembler
from brisk.graph.files.mapping import map_file
from brisk.graph.files.sources import Extraction
from brisk.graph.files.wire_format import MalformedMessage, detach_large_tensors
from brisk.graph.inference import infer
from brisk.graph.operators import domain_of
from brisk.graph.program import Program

DETACHED_BYTES = 4096
"""Initialisers from this size on bypass protobuf."""


def read_program(path: Path) -> Program:
    """The optimised program of the ONNX file at ``path``.

    Weights are views of the mapped file: see ``brisk.graph.files.mapping``. Raises
    InvalidModelError (or its subclass UnsupportedOperatorError) naming the file and what is
    wrong with it.
    """
    try:
        data = map_file(path)
    except OSError as error:
        raise InvalidModelError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        model, raw = _parse(data)
        return _build(model, path.parent, model.graph.name, raw)
    except BriskError as error:
        raise type(error)(f"{path}: {error}") from error


def build_program(
    model: ModelProto, directory: Path | None = None, name: str = "", *, optimised: bool = True
) -> Program:
    """The program of ``model``, which is not changed; not ``optimised``: of its own nodes.

    ``directory``: where external data lies. Raises as ``read_program``.
    """
    return _build(model, directory, name or model.graph.name, {}, optimised)


def _parse(data: memoryview) -> tuple[ModelProto, dict[str, memoryview]]:
    if not data:
        raise InvalidModelError("the file is empty, not an ONNX model")
    detached: dict[int, memoryview] = {}
    try:
        rest, detached = detach_large_tensors(data, DETACHED_BYTES)
        model = ModelProto.FromString(rest)
    except (MalformedMessage, DecodeError) as error:
        raise InvalidModelError(f"not an ONNX model, or cut off ({error})") from error
    tensors = model.graph.initializer
    return model, {tensors[index].name: view for index, view in detached.items()}


def _build(
    model: ModelProto,
    directory: Path | None,
    name: str,
    raw: dict[str, memoryview],
    optimised: bool = True,
) -> Program:
    if not model.HasField("graph") or not model.opset_import:
        raise InvalidModelError("not an ONNX model: it has no graph or no operator set")
    if model.functions:
        model = _without_functions(model)
    versions = {domain_of(entry.domain): entry.version for entry in model.opset_import}
    extraction = Extraction(directory, raw)
    try:
        skeleton = infer(extraction.model(model))
        assembler = Assembler(extraction, versions, (model.ir_version or 4) >= 4, optimised)
        return assembler.program(skeleton.graph, name)
    except BriskError:
        raise
    except Exception as error:  # the model's writer, not Brisk, decides what can be wrong here
        raise InvalidModelError(
            f"the model is malformed: {type(error).__name__}: {error}"
        ) from error


def _without_functions(model: ModelProto) -> ModelProto:
    """``model`` with its own functions inlined."""
    try:
        return inliner.inline_local_functions(model, convert_version=True)
    except (RuntimeError, ValueError) as error:
        raise InvalidModelError(f"its functions cannot be inlined: {error}") from error
