"""The model whose server is started: its file, one request, and the right answer."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from brisk_client.benchmarks.engines.agreement import load_arrays
from brisk_client.benchmarks.engines.model_inputs import NOTHING_GIVEN, GivenInputs, make_inputs
from brisk_client.benchmarks.engines.onnxruntime_prepared import open_session, session_options
from brisk_client.benchmarks.engines.process import EngineUnavailableError, run_apart
from brisk_client.benchmarks.harness.command_line import UnusableArgumentError
from brisk_client.benchmarks.harness.served_entries import Signature, Tensor, tensor_of
from brisk_client.samples.expectations import EXPECTED, read_expectations

SAMPLES = Path(__file__).resolve().parents[4] / "model_repository"

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Case:
    """A model, a request, and what it is to be answered. ``source``: whose answer that is."""

    name: str
    file: Path
    inputs: Arrays
    expected: Arrays
    source: str
    signature: Signature


def case_of(named: str, given: GivenInputs = NOTHING_GIVEN) -> Case:
    """``named``: a sample entry, or an ONNX file.

    Raises UnusableArgumentError where it cannot be served, or its right answer not be had.
    """
    entry, file = SAMPLES / named, Path(named)
    if (entry / EXPECTED).is_file() and not file.is_file() and not given.names():
        known = read_expectations(entry)[-1]
        file = entry / str(known.version) / "model.onnx"
        return _case(named, file, known.inputs, known.outputs, "the sample's (onnx.reference)")
    if not file.is_file():
        found = sorted(SAMPLES.glob(f"{named}/*/model.onnx"))
        if not found:
            raise UnusableArgumentError(
                f"'{named}' is no ONNX file and no generated sample of {SAMPLES.name}"
            )
        file = found[-1]
    inputs = make_inputs(file, {}, given)
    return _case(Path(named).stem, file, inputs, _answer_apart(file, inputs), "onnxruntime's")


def _case(name: str, file: Path, inputs: Arrays, expected: Arrays, source: str) -> Case:
    graph = onnx.load(file, load_external_data=False).graph
    signature = (
        [_tensor(value, inputs) for value in graph.input if value.name in inputs],
        [_tensor(value, expected) for value in graph.output],
    )
    return Case(name, file.resolve(), inputs, expected, source, signature)


def _tensor(value: onnx.ValueInfoProto, arrays: Arrays) -> Tensor:
    try:
        tensor = tensor_of(value)
    except LookupError:
        kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        text = f"'{value.name}' is of {kind}, which Triton has no type for"
        raise UnusableArgumentError(text) from None
    rank = arrays[value.name].ndim
    if rank == 0:
        raise UnusableArgumentError(
            f"'{value.name}' is a scalar, which a complete configuration cannot describe"
        )
    return tensor if tensor.dims else Tensor(value.name, tensor.datatype, [-1] * rank)


def _answer_apart(file: Path, inputs: Arrays) -> dict[str, np.ndarray]:
    """ONNX Runtime's answer, computed in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="brisk-start-answer-") as folder:
        asked, answered = Path(folder) / "inputs.npz", Path(folder) / "outputs.npz"
        np.savez(asked, **inputs)
        try:
            run_apart(__name__, file, asked, answered)
        except EngineUnavailableError as error:
            raise UnusableArgumentError(
                f"no right answer of {file.name}: onnxruntime cannot run it: {error}"
            ) from error
        return load_arrays(answered)


def _answer(file: str, asked: str, answered: str) -> None:
    """The process of ``_answer_apart``."""
    session = open_session(Path(file), session_options(1))
    names = [output.name for output in session.get_outputs()]
    np.savez(answered, **dict(zip(names, session.run(names, load_arrays(asked)), strict=True)))


if __name__ == "__main__":
    _answer(*sys.argv[1:])
