"""A model that is quick to run and long to load."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from onnx import helper

from support.models.segment_models import info, save


def long_to_load(path: Path, layers: int = 800) -> Path:
    """Quick to run, long to plan: every softmax over four values is a layer."""
    names = ["x", *(f"v{number}" for number in range(1, layers)), "y"]
    nodes = [
        helper.make_node("Softmax", [source], [result], axis=-1)
        for source, result in pairwise(names)
    ]
    return save(path, nodes, [info("x", "n", 4)], [info("y", "n", 4)])
