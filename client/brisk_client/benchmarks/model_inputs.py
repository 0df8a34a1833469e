"""Inputs for any ONNX model, made from the types of its graph inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

LENGTH = 128
"""Symbolic sizes of inputs of rank 2 and 3 other than the first: tokens, frames."""

SIDE = 224
"""Symbolic sizes of inputs of rank 4 and more other than the first: pixels."""


def make_inputs(model: Path, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """One array for each required input; floats are normal, integers 0 or 1, masks all 1.

    ``sizes`` gives symbolic dimensions by name; a first dimension is 1 where it does not.
    Raises ValueError for an input that is no tensor of numbers.
    """
    graph = onnx.load(model, load_external_data=False).graph
    constants = {initializer.name for initializer in graph.initializer}
    random = np.random.default_rng(0)
    return {
        value.name: _make_array(value, sizes, random)
        for value in graph.input
        if value.name not in constants
    }


def _make_array(
    value: onnx.ValueInfoProto, sizes: Mapping[str, int], random: np.random.Generator
) -> np.ndarray:
    if not value.type.HasField("tensor_type"):
        raise ValueError(f"input '{value.name}' is no tensor")
    declared = value.type.tensor_type
    dimensions = list(declared.shape.dim)
    other = LENGTH if len(dimensions) < 4 else SIDE
    shape = [
        dimension.dim_value
        if dimension.HasField("dim_value")
        else sizes.get(dimension.dim_param, other if position else 1)
        for position, dimension in enumerate(dimensions)
    ]
    dtype = helper.tensor_dtype_to_np_dtype(declared.elem_type)
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if dtype.kind not in "biu":
        raise ValueError(f"input '{value.name}' is of {dtype}, not of numbers")
    if "mask" in value.name:
        return np.ones(shape, dtype)
    return random.integers(0, 2, shape).astype(dtype)
