"""The model whose server is started: its file, one request, and the right answer."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from brisk_client.benchmarks.engines.model_inputs import (
    NOTHING_GIVEN,
    GivenInputs,
    InvalidInputError,
    make_inputs,
)
from brisk_client.benchmarks.engines.onnxruntime_prepared import (
    EndedApartError,
    run_apart,
    session_options,
)
from brisk_client.benchmarks.harness.served_entries import TYPES
from brisk_client.samples.expectations import EXPECTED, read_expectations

SAMPLES = Path(__file__).resolve().parents[4] / "model_repository"


class UnusableModelError(Exception):
    """The model cannot be served or its right answer not be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output as Triton's configuration names it; -1 is any size."""

    name: str
    datatype: str
    dims: Sequence[int]


@dataclass(frozen=True, slots=True)
class Case:
    """A model, a request, and what it is to be answered. ``source``: whose answer that is."""

    name: str
    file: Path
    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]
    source: str
    signature: tuple[Sequence[Tensor], Sequence[Tensor]]


def case_of(named: str, sizes: Mapping[str, int], given: GivenInputs = NOTHING_GIVEN) -> Case:
    """``named``: a sample entry, or an ONNX file. Raises UnusableModelError."""
    entry = SAMPLES / named
    if (entry / EXPECTED).is_file() and not Path(named).is_file() and not given.names():
        expectation = read_expectations(entry)[-1]
        file = entry / str(expectation.version) / "model.onnx"
        return _case(
            named, file, expectation.inputs, expectation.outputs, "the sample's (onnx.reference)"
        )
    file = Path(named)
    if not file.is_file():
        found = sorted(SAMPLES.glob(f"{named}/*/model.onnx"))
        if not found:
            raise UnusableModelError(
                f"'{named}' is no ONNX file and no generated sample of {SAMPLES.name}"
            )
        file = found[-1]
    try:
        inputs = make_inputs(file, sizes, given)
    except InvalidInputError as error:
        raise UnusableModelError(str(error)) from error
    return _case(Path(named).stem, file, inputs, _answer_apart(file, inputs), "onnxruntime's")


def _case(
    name: str,
    file: Path,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    source: str,
) -> Case:
    graph = onnx.load(file, load_external_data=False).graph
    asked = [value for value in graph.input if value.name in inputs]
    signature = (_tensors(asked, inputs), _tensors(graph.output, expected))
    return Case(name, file.resolve(), inputs, expected, source, signature)


def _tensors(
    values: Sequence[onnx.ValueInfoProto], arrays: Mapping[str, np.ndarray]
) -> list[Tensor]:
    found = []
    for value in values:
        declared, array = value.type.tensor_type, arrays[value.name]
        if declared.elem_type not in TYPES:
            kind = onnx.TensorProto.DataType.Name(declared.elem_type)
            raise UnusableModelError(f"'{value.name}' is of {kind}, which Triton has no type for")
        if array.ndim == 0:
            raise UnusableModelError(
                f"'{value.name}' is a scalar, which a complete configuration cannot describe"
            )
        sizes = [size.dim_value for size in declared.shape.dim]
        dims = [size if size > 0 else -1 for size in sizes]
        found.append(Tensor(value.name, TYPES[declared.elem_type], dims or [-1] * array.ndim))
    return found


def _answer_apart(file: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """ONNX Runtime's answer, computed in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="brisk-start-answer-") as folder:
        asked, answered = Path(folder) / "inputs.npz", Path(folder) / "outputs.npz"
        np.savez(asked, **inputs)
        try:
            run_apart(__name__, file, asked, answered)
        except EndedApartError as error:
            raise UnusableModelError(
                f"no right answer of {file.name}: onnxruntime cannot run it: {error}"
            ) from error
        with np.load(answered) as arrays:
            return {name: arrays[name] for name in arrays.files}


def _answer(file: str, asked: str, answered: str) -> None:
    """The process of ``_answer_apart``."""
    import onnxruntime

    with np.load(asked) as arrays:
        inputs = {name: arrays[name] for name in arrays.files}
    session = onnxruntime.InferenceSession(
        file, session_options(1), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    np.savez(answered, **dict(zip(names, session.run(names, inputs), strict=True)))


if __name__ == "__main__":
    _answer(*sys.argv[1:])
