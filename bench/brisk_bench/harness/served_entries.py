"""Entries that serve a model by Brisk, or by other engines as their users would."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import TensorProto, helper

from brisk.protocol.datatypes import BY_ELEMENT_NAME, config_name

SAMPLES = Path(__file__).resolve().parents[3] / "model_repository"

ONNXRUNTIME_MODEL = """
import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = {threads}
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(
            {file!r}, options, providers=["CPUExecutionProvider"]
        )
        self.names = [output.name for output in self.session.get_outputs()]

    def execute(self, requests):
        responses = []
        for request in requests:
            feeds = {{tensor.name(): tensor.as_numpy() for tensor in request.inputs()}}
            for name in {scalars}:
                feeds[name] = feeds[name].reshape(())
            outputs = self.session.run(self.names, feeds)
            tensors = [pb_utils.Tensor(*pair) for pair in zip(self.names, outputs)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""

ONNXRUNTIME_SPINNING_MODEL = ONNXRUNTIME_MODEL.replace(
    '"session.intra_op.allow_spinning", "0"', '"session.intra_op.allow_spinning", "1"'
)
"""ONNXRUNTIME_MODEL with ONNX Runtime's default: idle threads wait actively."""

ONNXRUNTIME_PREPARED_MODEL = ONNXRUNTIME_MODEL.replace(
    "ORT_ENABLE_ALL", "ORT_DISABLE_ALL"
).replace(
    "        self.session",
    """        options.add_session_config_entry("session.disable_prepacking", "{no_prepacking}")
        self.session""",
    1,
)
"""ONNXRUNTIME_MODEL for a model of ``onnxruntime_prepared``; ``no_prepacking`` is 0 or 1."""

TORCH_MODEL = """
from pathlib import Path

import torch
import triton_python_backend_utils as pb_utils
from brisk_bench.engines.eager import torch_network


class TritonPythonModel:
    def initialize(self, args):
        torch.set_num_threads({threads})
        self.network = torch_network(Path({file!r}), {weights!r})

    def execute(self, requests):
        responses = []
        for request in requests:
            arrays = [
                pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in {inputs}
            ]
            with torch.inference_mode():
                output = self.network(*[torch.from_numpy(array) for array in arrays]).numpy()
            tensor = pb_utils.Tensor({output!r}, output)
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""
"""The source of a torch model. ``weights``: a file that ``save_weights`` made, or None."""


def sample_file(label: str) -> Path:
    """Return the file of sample NAME/VERSION. Raises FileNotFoundError if it is not generated."""
    file = SAMPLES / label / "model.onnx"
    if not file.is_file():
        raise FileNotFoundError(f"no {file}; model_repository/generate.py makes it")
    return file


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output of a model; -1 is any size. Without ``dims``: a scalar."""

    name: str
    datatype: str
    dims: Sequence[int]

    def line(self, side: str, *, batched: bool = False) -> str:
        """Return its line of ``config.pbtxt``; ``side``: ``input`` or ``output``.

        ``batched``: its first size is the batch's. Triton knows no scalars but as a batch's
        members, so of any others clients give and get arrays of one element.
        """
        dims = list(self.dims)[batched:]
        reshape = " reshape { shape: [ ] }" if batched and not dims else ""
        return (
            f"{side} [ {{ name: {json.dumps(self.name)} data_type: {self.datatype} "
            f"dims: {dims or [1]}{reshape} }} ]\n"
        )


Signature: TypeAlias = tuple[Sequence[Tensor], Sequence[Tensor]]
"""Inputs and outputs of a model."""


def tensor_of(value: onnx.ValueInfoProto) -> Tensor:
    """Describe an input or output. Raises LookupError for a type that Triton does not have."""
    declared = value.type.tensor_type
    element = declared.elem_type
    is_text = element == TensorProto.STRING
    name = "string" if is_text else helper.tensor_dtype_to_np_dtype(element).name
    sizes = [size.dim_value for size in declared.shape.dim]
    dims = [size if size > 0 else -1 for size in sizes]
    return Tensor(value.name, config_name(BY_ELEMENT_NAME[name]), dims)


def signature_of(file: Path) -> Signature:
    """Return an ONNX file's signature, without inputs that have a default.

    Old exporters list all weights as such inputs. Raises LookupError as ``tensor_of`` does.
    """
    graph = onnx.load(file, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [each for each in graph.input if each.name not in weights]
    return [tensor_of(each) for each in inputs], [tensor_of(each) for each in graph.output]


def parameter(key: str, value: object) -> str:
    """Return a line of ``config.pbtxt`` that sets a parameter."""
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


def write_config(
    repository: Path,
    name: str,
    signature: Signature,
    backend: str,
    more: str = "",
    *,
    rows: int = 0,
    instances: str = "instance_group [ { count: 1 kind: KIND_CPU } ]\n",
) -> Path:
    """Write a complete ``config.pbtxt``, ``more`` at its end; return the folder of version 1.

    ``rows``: ``max_batch_size``.
    """
    folder = repository / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    text = f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: {rows}\n'
    for side, tensors in zip(("input", "output"), signature, strict=True):
        text += "".join(tensor.line(side, batched=rows > 0) for tensor in tensors)
    (folder.parent / "config.pbtxt").write_text(text + instances + more)
    return folder


def write_brisk_entry(
    repository: Path, file: Path, name: str, parameters: Mapping[str, str] | None = None
) -> None:
    """Write an entry ``name`` of Brisk's that serves ``file``, which is placed there.

    ``parameters``: of the configuration, for example ``{"brisk_class": "realtime"}``.
    """
    more = "".join(parameter(*each) for each in (parameters or {}).items())
    folder = write_config(repository, name, signature_of(file), "brisk", more)
    place_model(file, folder / "model.onnx")


def place_model(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Make a hard link if the file systems allow, else a copy; Brisk follows no others out."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copyfile(source, target)


def write_python_entry(
    repository: Path, name: str, signature: Signature, source: str, **values: object
) -> None:
    """Write an entry ``name`` of the Python backend; see ``write_python_model``."""
    folder = write_config(repository, name, signature, "python")
    write_python_model(folder, signature, source, **values)


def write_python_model(folder: Path, signature: Signature, source: str, **values: object) -> None:
    """Write the ``model.py`` of a version in its ``folder``.

    ``source`` is formatted with ``values``, the names of its ``inputs``, those of them that are
    ``scalars``, and its first ``output``.
    """
    inputs, outputs = signature
    described = {
        "inputs": [each.name for each in inputs],
        "scalars": [each.name for each in inputs if not each.dims],
        "output": outputs[0].name,
    }
    (folder / "model.py").write_text(source.format(**described, **values).lstrip())
