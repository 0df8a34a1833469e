"""The repository of `brisk bench soak`: the innocent entries, and those that blows use."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from brisk_bench.harness.served_entries import SAMPLES
from brisk_bench.samples.expectations import EXPECTED

ANY_CLASS = '\nparameters { key: "brisk_max_class" value { string_value: "realtime" } }\n'
"""A part of an entry's configuration that allows requests of all classes."""

CHURNED = "churned"
"""The entry that is loaded and unloaded. No other entry has its weights, nor holds its form."""

REPLACED = "replaced"
"""The entry whose model file is replaced while it is served."""

FLOODED = tuple(f"flooded_{number}" for number in range(10))
SMALL = "mlp"
"""The sample that CHURNED, REPLACED and FLOODED are copies of."""

CROWD_SAMPLE, CROWD_ENTRY = "resnet18_ort", "crowded"
"""A sample that one client asks, and its copy, which many clients ask."""

ENDLESS = "endless"
"""The entry whose run has as many rounds as a request says."""

FOLDING = "folding"
"""The entry whose constants take minutes to fold."""

UNLOADED = {CHURNED, FOLDING}
"""Entries that the server does not load by itself."""

DISK_BYTES = 512 * 2**20
"""The size of the small disk: the samples' prepared forms and as much again."""

_FOLDED_SIZE, _FOLDED_PRODUCTS = 2048, 400

_SIGNATURE = """
max_batch_size: 0
input {{ name: "x" data_type: TYPE_FP32 dims: [ {size} ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ {size} ] }}
"""


def write_repository(directory: Path) -> Path:
    """Write all entries; most answer requests of any class."""
    directory.mkdir(parents=True)
    for entry in sorted(file.parent for file in SAMPLES.glob(f"*/{EXPECTED}")):
        shutil.copytree(entry, directory / entry.name)
    for name in (CHURNED, REPLACED, *FLOODED):
        shutil.copytree(SAMPLES / SMALL, directory / name)
    shutil.copytree(SAMPLES / CROWD_SAMPLE, directory / CROWD_ENTRY)
    for config in directory.glob("*/config.pbtxt"):
        text = re.sub(r"^name:.*\n", "", config.read_text(), flags=re.MULTILINE)
        is_flooded = config.parent.name in FLOODED
        config.write_text(text if is_flooded else text + ANY_CLASS)
    model = directory / CHURNED / "1" / "model.onnx"
    write_other_weights(model, model, np.float32(0.9))
    _write(directory / ENDLESS, _endless(), 1)
    _write(directory / FOLDING, _folding(), 4)
    return directory


def write_other_weights(source: Path, target: Path, factor: np.float32) -> None:
    """Write the same model with every weight multiplied by ``factor``."""
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = np.array(numpy_helper.to_array(tensor)) * factor
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, target)


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """Mount a file system of DISK_BYTES at ``directory`` if allowed; else use a directory."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    mounted = not subprocess.run(command, capture_output=True, check=False).returncode
    try:
        yield directory
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=False)


def _write(entry: Path, graph: onnx.GraphProto, size: int) -> None:
    (entry / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, entry / "1" / "model.onnx")
    (entry / "config.pbtxt").write_text('backend: "brisk"' + _SIGNATURE.format(size=size))


def _endless() -> onnx.GraphProto:
    """Return a graph: ``y`` is ``x`` after so many rounds of sine as ``x`` says."""
    tensor, float32, int64 = helper.make_tensor_value_info, TensorProto.FLOAT, TensorProto.INT64
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["goes"]),
            helper.make_node("Sin", ["value"], ["next"]),
        ],
        "body",
        [
            tensor("round", int64, []),
            tensor("go", TensorProto.BOOL, []),
            tensor("value", float32, [1]),
        ],
        [tensor("goes", TensorProto.BOOL, []), tensor("next", float32, [1])],
    )
    nodes = [
        helper.make_node("Cast", ["x"], ["many"], to=int64),
        helper.make_node("Reshape", ["many", "none"], ["rounds"]),
        helper.make_node("Loop", ["rounds", "", "x"], ["y"], body=body),
    ]
    none = helper.make_tensor("none", int64, [0], [])
    x, y = tensor("x", float32, [1]), tensor("y", float32, [1])
    return helper.make_graph(nodes, ENDLESS, [x], [y], [none])


def _folding() -> onnx.GraphProto:
    """Return a graph: ``x`` plus the greatest element of a product of constants that a few
    kilobytes describe."""
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [1e-3])
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], [name], value=value) for name in ("c", "p0")
    ]
    nodes += [
        helper.make_node("MatMul", [f"p{step}", "c"], [f"p{step + 1}"])
        for step in range(_FOLDED_PRODUCTS)
    ]
    nodes.append(helper.make_node("ReduceMax", [f"p{_FOLDED_PRODUCTS}"], ["most"], keepdims=0))
    nodes.append(helper.make_node("Add", ["x", "most"], ["y"]))
    size = helper.make_tensor("size", TensorProto.INT64, [2], [_FOLDED_SIZE] * 2)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    return helper.make_graph(nodes, FOLDING, [x], [y], [size])
