"""Wherever a run is interrupted, and by whatever, its answer is the same to the last bit."""

from __future__ import annotations

import random

import onnx
import pytest
import torch
from onnx import parser

from brisk.execution.frame import TorchFrame, run_serially
from brisk.execution.loading import LoadedProgram, load_program
from brisk.graph.reader import build_program
from brisk.solutions.values import Value

POINTS = 10_000

DEEP = (
    "deep (float[N, 6] x) => (float[N, 6] y) <int64 first = {0}>\n"
    "{ a = Sin (x) \n b = Softmax (a) \n t = Transpose (b) \n c = MatMul (t, a) \n"
    "  d = MatMul (a, c) \n e = Tanh (d) \n f = Concat <axis = 0> (e, x) \n"
    "  g = Exp (f) \n h = ReduceMean <keepdims = 1> (g) \n i = Mul (e, h) \n"
    "  j = CumSum (i, first) \n y = Add (j, b) }"
)
WIDE = (
    "wide (float[N, 4] x) => (float[N, 4] y)\n"
    "{ a = Exp (x) \n b = Tanh (a) \n c = Softmax (b) \n y = Mul (c, a) }"
)


def load(text: str) -> LoadedProgram:
    model = parser.parse_model('<ir_version: 9, opset_import: ["" : 20]>\n' + text)
    return load_program(
        build_program(onnx.shape_inference.infer_shapes(model)), torch.device("cpu")
    )


def bits(results: dict[str, Value]) -> bytes:
    (value,) = results.values()
    assert isinstance(value, torch.Tensor)
    return value.contiguous().numpy().tobytes()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_answers_are_the_same_to_the_last_bit_over_ten_thousand_preemptions() -> None:
    """Runs are parked in a stack, as a worker does; one frame may be interrupted many times."""
    chance = random.Random(0)
    programs = [load(DEEP), load(WIDE)]
    inputs = [{"x": torch.randn(3, 6)}, {"x": torch.randn(5, 4)}]
    expected = [bits(run_serially(programs[kind], inputs[kind])) for kind in range(2)]
    assert min(len(program.layers) for program in programs) >= 3
    preemptions = finished = 0
    runs: list[tuple[int, TorchFrame]] = []
    with torch.inference_mode():
        while preemptions < POINTS or runs:
            may_begin = preemptions < POINTS and len(runs) < 4
            if not runs or (may_begin and chance.random() < 0.4):
                preemptions += bool(runs)
                kind = chance.randrange(2)
                runs.append((kind, TorchFrame(programs[kind], inputs[kind])))
            kind, frame = runs[-1]
            if frame.step():
                assert bits(frame.results()) == expected[kind]
                runs.pop()
                finished += 1
    assert preemptions == POINTS
    assert finished > POINTS // 2
