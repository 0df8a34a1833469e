"""Models ``y = x + w`` that keep ``w`` in another file, named wherever a model may name one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from brisk.artefacts.store import is_settled
from brisk.paths import stamp_of
from support.waiting import wait_until

WIDTH = 4
LOCATION = "sub/deeper/w.bin"
"""The file of the weight, in the folder of the model."""


def _weight(location: str, name: str = "w") -> TensorProto:
    tensor = TensorProto(
        name=name,
        data_type=TensorProto.FLOAT,
        dims=[WIDTH],
        data_location=TensorProto.EXTERNAL,
    )
    tensor.external_data.add(key="location", value=location)
    return tensor


def _constant(location: str) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["w"], value=_weight(location))


def _added() -> onnx.NodeProto:
    return helper.make_node("Add", ["x", "w"], ["y"])


def _of_an_initialiser(location: str) -> onnx.ModelProto:
    model = _model([_added()])
    model.graph.initializer.append(_weight(location))
    return model


def _of_a_constant(location: str) -> onnx.ModelProto:
    return _model([_constant(location), _added()])


def _of_a_body(location: str) -> onnx.ModelProto:
    branches = {}
    for branch in ("then_branch", "else_branch"):
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])]
        branches[branch] = helper.make_graph([_added()], branch, [], outputs)
        branches[branch].initializer.append(_weight(location))
    always = helper.make_node(
        "Constant", [], ["always"], value=helper.make_tensor("", TensorProto.BOOL, [], [True])
    )
    return _model([always, helper.make_node("If", ["always"], ["y"], **branches)])


def _of_a_function(location: str) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 18)]
    body = [_constant(location), _added()]
    function = helper.make_function("own", "AddOwn", ["x"], ["y"], body, imports)
    return _model([helper.make_node("AddOwn", ["x"], ["y"], domain="own")], [function])


def _model(
    nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto] | None = None
) -> onnx.ModelProto:
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in "xy"
    ]
    graph = helper.make_graph(nodes, "external", values[:1], values[1:])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9, functions=functions or [])


EXTERNAL: Mapping[str, Callable[[str], onnx.ModelProto]] = {
    "initialiser": _of_an_initialiser,
    "constant": _of_a_constant,
    "body": _of_a_body,
    "function": _of_a_function,
}


def write_external(folder: Path, kind: str, name: str = "model.onnx") -> Path:
    """Write the model, whose ``w`` is of ones until it is replaced; return its file."""
    model, data = folder / name, folder / LOCATION
    data.parent.mkdir(parents=True, exist_ok=True)
    np.ones(WIDTH, np.float32).tofile(data)
    model.write_bytes(EXTERNAL[kind](LOCATION).SerializeToString())
    return model


def write_in_place(data: Path, value: float) -> None:
    """Overwrite the file; its size and modification time stay."""
    times = data.stat().st_atime_ns, data.stat().st_mtime_ns
    with data.open("r+b") as file:
        file.write(np.full(WIDTH, value, np.float32).tobytes())
    os.utime(data, ns=times)


def rename_over(data: Path, value: float) -> None:
    draft = data.with_suffix(".draft")
    np.full(WIDTH, value, np.float32).tofile(draft)
    draft.rename(data)


def rename_folder(data: Path, value: float) -> None:
    """Exchange the folder that it lies in."""
    folder, old = data.parent, data.parent.with_name("old")
    folder.rename(old)
    folder.mkdir()
    np.full(WIDTH, value, np.float32).tofile(data)


def turn_link(data: Path, value: float) -> None:
    """Let its folder be a link to another one beside, as mounted volumes are exchanged."""
    other = data.parent.with_name("exchanged")
    other.mkdir()
    np.full(WIDTH, value, np.float32).tofile(other / data.name)
    data.parent.rename(data.parent.with_name("old"))
    data.parent.symlink_to(other.name)


REPLACE: Mapping[str, Callable[[Path, float], None]] = {
    each.__name__: each for each in (write_in_place, rename_over, rename_folder, turn_link)
}


def settled(path: Path) -> Path:
    """Return the path of a file once a later change of it shows in its times."""

    def tells() -> bool:
        return is_settled(stamp_of(path.stat()), time.time_ns())

    wait_until(tells, "the file's times to tell")
    return path
