"""Sizes are computed on the CPU, whatever the device."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx import parser

from brisk.execution.plan import constants_of, host_values, operands_to_move
from brisk.graph.program import Program
from brisk.graph.reader import build_program
from brisk.solutions.base import make_problem


def program(text: str) -> Program:
    model = parser.parse_model('<ir_version: 9, opset_import: ["" : 20]>\n' + text)
    return build_program(onnx.shape_inference.infer_shapes(model))


SIZES = program(
    """m (float[N, M] x, float[K] z, int64[2] given) => (float[a, b] y, float[c] w, int64[2] q)
    <int64[1] last = {-1}, int64 two = {2}> {
      s = Shape (x)
      d = Mul (s, two)
      q = Mul (given, d)
      f = Cast <to = 1> (d)
      y = Expand (x, d)
      w = Mul (f, z)
    }"""
)


def test_what_follows_from_shapes_alone_stays_on_the_cpu() -> None:
    host = host_values(SIZES, constants_of(SIZES, {}))
    assert {"s", "d", "f"} <= host
    assert not host & {"q", "y", "w"}


def test_only_sizes_that_are_data_are_moved_to_the_device() -> None:
    constants = constants_of(SIZES, {})
    host = host_values(SIZES, constants)
    moves = {}
    for layer in SIZES.layers:
        problem = make_problem(SIZES, layer, constants, torch.device("cuda"))
        moves[layer.outputs[0]] = operands_to_move(problem, host)
    assert moves["y"] == ()
    assert moves["w"] == (0,)
    assert moves["q"] == (1,)


def test_nothing_moves_on_the_cpu() -> None:
    constants = constants_of(SIZES, {})
    problem = make_problem(SIZES, SIZES.layers[-1], constants, torch.device("cpu"))
    assert operands_to_move(problem, {"f"}) == ()


def test_a_table_is_looked_up_on_the_device_even_by_a_size() -> None:
    looked_up = program(
        """m (float[N, M] x, float[2, 64] table) => (float[2, 64] y) {
          s = Shape (x)
          y = Gather (table, s)
        }"""
    )
    weights = {"table": np.zeros((2, 64), np.float32)}
    assert host_values(looked_up, weights) == {"s"}
