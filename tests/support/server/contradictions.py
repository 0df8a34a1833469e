"""Configurations that contradict a small model, and what is said of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from support.server.entries import make_model

X, Y = ("x", "FP32", [4]), ("y", "FP32", [4])


def tensor(name: str, kind: str, dims: Sequence[int], **fields: Any) -> dict[str, Any]:
    return {"name": name, "data_type": f"TYPE_{kind}", "dims": [*dims], **fields}


def config(
    *inputs: dict[str, Any], y: dict[str, Any] | None = None, **rest: Any
) -> dict[str, Any]:
    specified = list(inputs) or [tensor(*X)]
    return {"max_batch_size": 8, "input": specified, "output": [y or tensor(*Y)], **rest}


Value = tuple[str, int, "Sequence[int | str | None] | None"]


def saved(
    directory: Path,
    inputs: Sequence[Value] = (("x", TensorProto.FLOAT, ["b", 4]),),
    outputs: Sequence[Value] = (("y", TensorProto.FLOAT, ["b", 4]),),
    weights: Sequence[str] = (),
) -> Path:
    """A model whose every output is its first input."""
    nodes = [helper.make_node("Identity", [inputs[0][0]], [output[0]]) for output in outputs]
    zeros = [(name, np.zeros(4, np.float32)) for name in weights]
    path = directory / "model.onnx"
    onnx.save(make_model(nodes, inputs, outputs, zeros), path)
    return path


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "input's type": (
        config(tensor("x", "INT32", [4])),
        "datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
    ),
    "input's size": (
        config(tensor("x", "FP32", [5])),
        r"shape \[-1, 5\] \(with the batch\) for input 'x', model provides \[-1, 4\]",
    ),
    "input's rank": (
        config(tensor("x", "FP32", [2, 2])),
        r"shape \[-1, 2, 2\] \(with the batch\) for input 'x', model provides \[-1, 4\]",
    ),
    "input's reshape": (
        config(tensor("x", "FP32", [4], reshape={"shape": [2, 2]})),
        r"shape \[-1, 2, 2\] \(with the batch\) for input 'x', model provides \[-1, 4\]",
    ),
    "no batch": (
        config(max_batch_size=0),
        r"shape \[4\] for input 'x', model provides \[-1, 4\]",
    ),
    "input's name": (
        config(tensor("z", "FP32", [4])),
        r"unexpected input 'z' in the configuration, the model's inputs are 'x'; "
        r"the configuration lacks 'x' \(TYPE_FP32 \[-1, 4\]\), which the model needs",
    ),
    "an input too many": (
        config(tensor(*X), tensor("z", "FP32", [4])),
        "unexpected input 'z' in the configuration, the model's inputs are 'x'$",
    ),
    "output's type": (
        config(y=tensor("y", "FP16", [4])),
        "datatype TYPE_FP16 for output 'y', model provides TYPE_FP32",
    ),
    "output's size": (
        config(y=tensor("y", "FP32", [5])),
        r"shape \[-1, 5\] \(with the batch\) for output 'y', model provides \[-1, 4\]",
    ),
    "output's variable size": (
        config(y=tensor("y", "FP32", [-1])),
        r"shape \[-1, -1\] \(with the batch\) for output 'y', model provides \[-1, 4\]",
    ),
    "output's rank": (
        config(y=tensor("y", "FP32", [4, 1])),
        r"shape \[-1, 4, 1\] \(with the batch\) for output 'y', model provides \[-1, 4\]",
    ),
    "output's name": (
        config(y=tensor("z", "FP32", [4])),
        "unexpected output 'z' in the configuration, the model's outputs are 'y'",
    ),
}
