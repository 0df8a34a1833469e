"""Entries that serve the sample models by Brisk, and as users of other engines would."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto

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
            outputs = self.session.run(self.names, feeds)
            tensors = [pb_utils.Tensor(*pair) for pair in zip(self.names, outputs)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""

ONNXRUNTIME_PREPARED_MODEL = ONNXRUNTIME_MODEL.replace(
    "ORT_ENABLE_ALL", "ORT_DISABLE_ALL"
).replace(
    "        self.session",
    """        options.add_session_config_entry("session.disable_prepacking", "{no_prepacking}")
        self.session""",
    1,
)
"""The same from a model that ``onnxruntime_prepared`` made; ``no_prepacking`` is 0 or 1."""

TORCH_EXECUTE = """
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
"""The method of a Python-backend model whose ``self.network`` is a torch module."""

TORCH_MODEL = (
    """
from pathlib import Path

import torch
import triton_python_backend_utils as pb_utils
from brisk_client.benchmarks.engines.eager import eager_network


class TritonPythonModel:
    def initialize(self, args):
        torch.set_num_threads({threads})
        self.network = eager_network(Path({file!r}))

"""
    + TORCH_EXECUTE
)

TYPES = {
    TensorProto.FLOAT: "TYPE_FP32",
    TensorProto.DOUBLE: "TYPE_FP64",
    TensorProto.FLOAT16: "TYPE_FP16",
    TensorProto.INT8: "TYPE_INT8",
    TensorProto.INT16: "TYPE_INT16",
    TensorProto.INT32: "TYPE_INT32",
    TensorProto.INT64: "TYPE_INT64",
    TensorProto.UINT8: "TYPE_UINT8",
    TensorProto.UINT16: "TYPE_UINT16",
    TensorProto.UINT32: "TYPE_UINT32",
    TensorProto.UINT64: "TYPE_UINT64",
    TensorProto.BOOL: "TYPE_BOOL",
    TensorProto.STRING: "TYPE_STRING",
}
"""Triton's names of ONNX's element types."""

NO_PARAMETERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class ServedEntry:
    """A model of the repository: which sample it serves (NAME/VERSION), by which engine."""

    name: str
    sample: str
    engine: str


def write_entries(repository: Path, file: Path, label: str, threads: int) -> list[ServedEntry]:
    """One entry for each engine that has the model ``file``; ``label`` is NAME/VERSION.

    The same configuration for all, but for the backend; one instance each.
    """
    stem = label.replace("/", "_")
    entries = [ServedEntry(f"{stem}_brisk", label, "brisk")]
    write_brisk_entry(repository, file, entries[0].name)
    sources = {"onnxruntime": ONNXRUNTIME_MODEL}
    if _has_torch_form(file):
        sources["torch eager"] = TORCH_MODEL
    for engine, source in sources.items():
        entry = ServedEntry(f"{stem}_{engine.replace(' ', '_')}", label, engine)
        write_python_entry(repository, file, entry.name, source, {"threads": threads})
        entries.append(entry)
    return entries


def write_brisk_entry(
    repository: Path, file: Path, name: str, parameters: Mapping[str, str] = NO_PARAMETERS
) -> None:
    """An entry ``name`` of Brisk's that serves ``file``, which is placed there.

    ``parameters``: of the configuration, for example ``{"brisk_class": "realtime"}``.
    """
    graph = onnx.load(file, load_external_data=False).graph
    folder = write_config(repository, name, graph, "brisk", parameters)
    place_model(file, folder / "model.onnx")


def place_model(source: Path, target: Path) -> None:
    """A hard link where the file systems allow, else a copy; Brisk follows no others out."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def write_python_entry(
    repository: Path, file: Path, name: str, source: str, values: Mapping[str, object]
) -> None:
    """An entry ``name`` of the Python backend with the signature of ``file``.

    ``source`` is formatted with ``values`` and with the model's ``file``, names of its ``inputs``,
    and its first ``output``.
    """
    graph = onnx.load(file, load_external_data=False).graph
    described = {
        "file": str(file.resolve()),
        "inputs": [value.name for value in graph.input],
        "output": graph.output[0].name,
    }
    folder = write_config(repository, name, graph, "python")
    (folder / "model.py").write_text(source.format(**described, **values).lstrip())


def _has_torch_form(file: Path) -> bool:
    from brisk_client.benchmarks.engines.eager import NETWORKS

    return file.resolve().parent.parent.name in NETWORKS


def write_config(
    repository: Path,
    name: str,
    graph: onnx.GraphProto,
    backend: str,
    parameters: Mapping[str, str] = NO_PARAMETERS,
) -> Path:
    """Write ``config.pbtxt`` and make the version's folder, which is given back."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    text = f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: 0\n'
    for side, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            declared = value.type.tensor_type
            sizes = [size.dim_value or -1 for size in declared.shape.dim]
            text += (
                f"{side} [ {{ name: {json.dumps(value.name)} "
                f"data_type: {TYPES[declared.elem_type]} dims: {sizes} }} ]\n"
            )
    for key, setting in parameters.items():
        text += f'parameters {{ key: "{key}" value: {{ string_value: "{setting}" }} }}\n'
    text += "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    (folder.parent / "config.pbtxt").write_text(text)
    return folder
