"""The model that a measured server serves: its file, one request, and the right answer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from brisk_bench.engines.model_inputs import NOTHING_GIVEN, GivenInputs, make_inputs
from brisk_bench.engines.networks import MODELS, build
from brisk_bench.engines.process import EngineUnavailableError
from brisk_bench.engines.registry import BASE
from brisk_bench.engines.warm import WarmEngine
from brisk_bench.harness.command_line import UnusableArgumentError
from brisk_bench.harness.served_entries import SAMPLES, Signature, Tensor, tensor_of
from brisk_bench.samples.expectations import EXPECTED, read_expectations

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Case:
    """A model, a request, and its right answer; a scalar is an array of one element in both.
    ``source``: where that answer comes from."""

    name: str
    file: Path
    inputs: Arrays
    expected: Arrays
    source: str
    signature: Signature


def case_of(named: str, given: GivenInputs = NOTHING_GIVEN) -> Case:
    """Return the case of a sample entry or an ONNX file, ``named``.

    Raises UnusableArgumentError if it cannot be served, or its right answer cannot be computed.
    """
    entry, file = SAMPLES / named, Path(named)
    if (entry / EXPECTED).is_file() and not file.is_file() and not given.names():
        sample = read_expectations(entry)[-1]
        file = entry / str(sample.version) / "model.onnx"
        return _case(named, file, sample.inputs, sample.outputs, "the sample's (onnx.reference)")
    if not file.is_file():
        samples = sorted(SAMPLES.glob(f"{named}/*/model.onnx"))
        if not samples:
            raise UnusableArgumentError(
                f"'{named}' is no ONNX file and no generated sample of {SAMPLES.name}"
            )
        file = samples[-1]
    inputs = make_inputs(file, given)
    return _case(Path(named).stem, file, inputs, _answer(file, inputs), "onnxruntime's")


def made_case(named: str, scratch: Path) -> Case:
    """Return a case as ``case_of`` does; also one of the networks of ``brisk bench cold`` that is
    no sample, made in the folder ``scratch``."""
    if named not in MODELS or (SAMPLES / named).is_dir() or Path(named).is_file():
        return case_of(named)
    file = scratch / f"{named}.onnx"
    if not file.exists():
        os.link(build(named, scratch / "networks").model, file)
    return case_of(str(file))


def _case(name: str, file: Path, inputs: Arrays, expected: Arrays, source: str) -> Case:
    graph = onnx.load(file, load_external_data=False).graph
    signature = (
        [_tensor(value, inputs) for value in graph.input if value.name in inputs],
        [_tensor(value, expected) for value in graph.output],
    )
    sent, received = (
        {key: np.atleast_1d(array) for key, array in arrays.items()}
        for arrays in (inputs, expected)
    )
    return Case(name, file.resolve(), sent, received, source, signature)


def _tensor(value: onnx.ValueInfoProto, arrays: Arrays) -> Tensor:
    try:
        tensor = tensor_of(value)
    except LookupError:
        kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        text = f"'{value.name}' is of {kind}, which Triton has no type for"
        raise UnusableArgumentError(text) from None
    any_sizes = [-1] * arrays[value.name].ndim
    return tensor if tensor.dims else Tensor(value.name, tensor.datatype, any_sizes)


def _answer(file: Path, inputs: Arrays) -> dict[str, np.ndarray]:
    """Return ONNX Runtime's answer, computed in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="brisk-start-answer-") as folder:
        np.savez(Path(folder) / "inputs.npz", **inputs)
        try:
            with WarmEngine(BASE, file, 1, Path(folder)) as engine:
                answers = engine.outputs()
        except EngineUnavailableError as error:
            raise UnusableArgumentError(
                f"no right answer of {file.name}: onnxruntime cannot run it: {error}"
            ) from error
    graph = onnx.load(file, load_external_data=False).graph
    return dict(zip([each.name for each in graph.output], answers, strict=True))
