"""Normalisation against the reference solution."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.graph.program import Node
from support.models.solution_oracle import assert_agrees, layer_problem, refusal

GENERATOR = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def per_channel(source: tuple[int, ...], operator: str) -> tuple[int, ...]:
    return source[-1:] if operator in ("LayerNormalization", "RMSNormalization") else source[1:2]


# onnx.reference computes LRN of only as many channels as there are images
CASES = [
    ("BatchNormalization", 4, {"epsilon": 1e-3}, (2, 6, 5, 4)),
    ("BatchNormalization", 4, {}, (2, 6)),
    ("LayerNormalization", 2, {"epsilon": 1e-12}, (2, 5, 6)),
    ("LayerNormalization", 1, {"axis": 2}, (2, 5, 6)),
    ("RMSNormalization", 1, {"axis": -1}, (2, 5, 6)),
    ("InstanceNormalization", 2, {"epsilon": 1e-2}, (2, 6, 5, 4)),
    ("InstanceNormalization", 2, {}, (2, 6, 5)),
    ("GroupNormalization", 2, {"num_groups": 3}, (2, 6, 5, 4)),
    ("LRN", 0, {"size": 3, "alpha": 0.1, "beta": 0.6, "bias": 1.5}, (6, 6, 5, 4)),
    ("MeanVarianceNormalization", 0, {}, (2, 6, 5, 4)),
    ("MeanVarianceNormalization", 0, {"axes": (0, 1)}, (2, 6, 5)),
]

VERSIONS = {
    "BatchNormalization": 15, "LayerNormalization": 17, "RMSNormalization": 23,
    "InstanceNormalization": 22, "GroupNormalization": 21, "LRN": 13,
    "MeanVarianceNormalization": 13,
}  # fmt: skip


@pytest.mark.parametrize("constant", [False, True], ids=["variable", "constant"])
@pytest.mark.parametrize(("operator", "parameters", "attributes", "source"), CASES)
def test_a_normalisation_equals_its_definition(operator, parameters, attributes, source, constant):
    names = ("s", "b", "mean", "variance")[:parameters]
    values = {"x": normal(*source)}
    for name in names:
        values[name] = np.abs(normal(*per_channel(source, operator))) + np.float32(0.1)
    node = Node(operator, ("x", *names), ("y",), attributes, version=VERSIONS[operator])
    problem = layer_problem(node, values, constants=names if constant else ())
    assert_agrees(problem, values, rtol=1e-3)


def test_a_scale_that_broadcasts_is_refused():
    values = {"x": normal(2, 3, 4), "s": normal(1), "b": normal(1)}
    node = Node("LayerNormalization", ("x", "s", "b"), ("y",), version=17)
    assert refusal(layer_problem(node, values)) == "'s' of shape (1,) for dimensions (4,)"
