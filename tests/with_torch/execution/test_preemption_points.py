"""Wherever a run is interrupted, and by whatever, its answer is the same to the last bit."""

from __future__ import annotations

import random
from collections import deque

import onnx
import pytest
import torch
from onnx import parser

from brisk.execution.frame import TorchFrame, run_serially
from brisk.execution.loading import LoadedProgram, load_program
from brisk.graph.reader import build_program
from brisk.runtime.worker.device import LayerQueue
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


class LateEvent:
    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self._number = device.issued

    def query(self) -> bool:
        return self._device.done >= self._number


class LateDevice:
    """Does its layers one by one, each when it is told to: a GPU without the GPU."""

    def __init__(self) -> None:
        self.issued = 0
        self.done = 0

    def record_event(self) -> LateEvent:
        self.issued += 1
        return LateEvent(self)


def test_no_more_layers_are_outstanding_than_the_queue_takes() -> None:
    device, frame = LateDevice(), TorchFrame(load(DEEP), {"x": torch.randn(2, 6)})
    queue = LayerQueue(device, 2)
    outstanding: deque[int] = deque()
    while True:
        while queue.has_room() and not frame.is_finished:
            queue.issue(frame)
        outstanding.append(device.issued - device.done)
        if frame.is_finished:
            break
        device.done += 1
    assert set(outstanding) == {2}
    assert not queue.is_done()
    device.done = device.issued
    assert queue.is_done()


def test_a_run_that_is_preempted_goes_on_behind_its_last_issued_layer() -> None:
    """What a real-time run waits for is bounded; nothing is computed twice."""
    program, inputs = load(DEEP), {"x": torch.randn(2, 6)}
    expected = bits(run_serially(program, inputs))
    low, high = LateDevice(), LateDevice()
    lazy, urgent = LayerQueue(low, 2), LayerQueue(high, None)
    frame, other = TorchFrame(program, inputs), TorchFrame(load(WIDE), {"x": torch.randn(2, 4)})
    while lazy.has_room():
        lazy.issue(frame)
    assert frame.position == 2
    while not urgent.issue(other):
        pass
    assert low.done == 0, "it was issued without waiting for the other stream"
    high.done = high.issued
    assert urgent.is_done()
    while not frame.is_finished:
        low.done = low.issued
        assert lazy.has_room()
        lazy.issue(frame)
    assert low.issued == len(program.layers)
    assert bits(frame.results()) == expected


@pytest.mark.parametrize("has_stream", [True, False])
def test_a_queue_without_a_bound_has_room_and_keeps_no_events(has_stream: bool) -> None:
    device = LateDevice()
    queue = LayerQueue(device if has_stream else None, None)
    frame = TorchFrame(load(WIDE), {"x": torch.randn(2, 4)})
    while not queue.issue(frame):
        assert queue.has_room()
        assert queue.is_done()
    assert device.issued == has_stream, "only the end of a run is waited for, and on a GPU"
    assert queue.is_done() is not has_stream
