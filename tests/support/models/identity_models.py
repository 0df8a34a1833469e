"""Entries of the smallest models, written for the test that asks."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from support.server.entries import make_model

Shape = list[int | str | None]


def write_model(
    directory: Path,
    inputs: dict[str, tuple[int, Shape]],
    outputs: dict[str, tuple[int, Shape]],
    version: int = 1,
) -> Path:
    """An entry whose outputs are Identity of its inputs, in order."""
    nodes = [
        helper.make_node("Identity", [source], [target])
        for source, target in zip(inputs, outputs, strict=True)
    ]
    path = directory / str(version) / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    ends = ([(name, *kind) for name, kind in each.items()] for each in (inputs, outputs))
    onnx.save(make_model(nodes, *ends), path)
    return directory


FLOAT_BATCH = (TensorProto.FLOAT, ["batch", 3, "height"])
