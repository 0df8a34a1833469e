"""Layers of the compiled library as steps of a run, against the operators' definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from brisk.compiled.table import Kind
from brisk.execution.frame import Frame
from brisk.execution.joining import LONGEST_NS, drawn_runs
from brisk.execution.loading import load_program
from brisk.execution.plan import make_plan
from brisk.execution.serial import run_serially
from brisk.graph.reader import read_program
from brisk.native.sketch import Sketch
from brisk.solutions.catalogue import default_catalogue, reference_catalogue
from unit.native.test_small_runs import ATOL, CPU, RTOL, Network, by_definition, check, kinds

pytestmark = pytest.mark.usefixtures("instruction_set", "threads_restored")

UNITS = {
    "blocked_convolution": 0,
    "winograd_convolution": 2,
    "wide_winograd_convolution": 4,
}


def large_steps(file: Path) -> list[int]:
    """Units of the LAYERs of the program's runs."""
    plan = make_plan(read_program(file), CPU, default_catalogue())
    found = []
    for run in drawn_runs(plan.program, plan.layers):
        assert isinstance(run.drawn, Sketch)
        found += [step.unit for step in run.drawn.steps if step.kind is Kind.LAYER]
        assert len(run.large_layers) == sum(step.kind is Kind.LAYER for step in run.drawn.steps)
    return found


@pytest.mark.parametrize(
    ("solution", "channels", "outputs", "side", "kernel", "stride"),
    [
        ("blocked_convolution", 48, 112, 32, 1, 1),
        ("blocked_convolution", 20, 40, 49, 3, 2),  # ragged panels, ragged vectors
        ("winograd_convolution", 32, 40, 19, 3, 1),
        ("wide_winograd_convolution", 32, 34, 23, 3, 1),
    ],
)
def test_a_layer_of_the_library_is_a_step_with_the_same_answers(
    tmp_path: Path, solution: str, channels: int, outputs: int, side: int, kernel: int, stride: int
) -> None:
    network = Network((channels, side, side), 3)
    network.add("Relu")
    network.add(
        *("Conv", network.weight(outputs, channels, kernel, kernel), network.weight(outputs)),
        pads=[kernel // 2] * 4,
        strides=[stride, stride],
    )
    network.add("Relu")
    network.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    file = network.save(tmp_path)
    assert large_steps(file) == [UNITS[solution]]
    check(file, (channels, side, side), (1,))


def test_sums_borders_and_copies_around_a_large_layer_agree(tmp_path: Path) -> None:
    """What it reads has a border for others, and what it makes gets one; a sum is fused."""
    network = Network((16, 20, 20), 4)
    network.add("Conv", network.weight(32, 16, 1, 1))
    first = network.add("Relu")
    network.add("Conv", network.weight(8, 32, 3, 3), pads=[1, 1, 1, 1])
    network.add("Conv", network.weight(32, 8, 3, 3), pads=[1, 1, 1, 1])
    small = network.last
    network.last = first
    network.add("Conv", network.weight(352, 32, 1, 1))
    network.add("Relu")
    network.add("Conv", network.weight(32, 352, 1, 1), network.weight(32))
    network.add("Add", small)
    network.add("Relu")
    network.add("Conv", network.weight(8, 32, 3, 3), pads=[1, 1, 1, 1])
    network.add("Sigmoid")
    file = network.save(tmp_path)
    assert large_steps(file) == [0, 0]
    check(file, (16, 20, 20), (1,))


def test_the_memory_of_a_layers_weights_is_not_copied(tmp_path: Path) -> None:
    network = Network((32, 24, 24), 6)
    network.add("Relu")
    network.add("Conv", network.weight(224, 32, 1, 1))
    network.add("Conv", network.weight(32, 224, 1, 1))
    network.add("Relu")
    loaded = load_program(read_program(network.save(tmp_path)), CPU)
    assert loaded.joined is not None
    (joined,) = loaded.joined.layers
    borrowed = {array.ctypes.data for array in joined.kernel._steps.borrowed}
    own = {tensor.data_ptr() for layer in loaded.layers for tensor in layer.weights.values()}
    assert own
    assert borrowed == own


def test_batches_that_take_too_long_run_layer_by_layer_with_small_runs_between(
    tmp_path: Path,
) -> None:
    network = Network((32, 24, 24), 6)
    for _ in range(2):
        network.add("Conv", network.weight(32, 32, 1, 1))  # small ones
    network.add("Conv", network.weight(448, 32, 1, 1))
    network.add("Conv", network.weight(32, 448, 1, 1))
    for _ in range(2):
        network.add("Conv", network.weight(32, 32, 1, 1))
    file = network.save(tmp_path)
    loaded = load_program(read_program(file), CPU)
    joined = loaded.joined
    assert joined is not None
    assert joined.wider is not None
    assert kinds(joined) == [True]
    assert kinds(joined.wider) == [True, False, False, True]
    assert 1 <= joined.most_images < joined.wider.most_images
    oracle = load_program(read_program(file), CPU, reference_catalogue())
    for images, steps in (
        (joined.most_images, 1),
        (joined.most_images + 1, 4),
        (joined.wider.most_images + 1, 6),
    ):
        x = torch.from_numpy(
            np.random.default_rng(images).standard_normal((images, 32, 24, 24), np.float32)
        )
        frame = Frame(loaded, {"x": x})
        taken = 1
        while not frame.step():
            taken += 1
        assert taken == steps
        wanted = by_definition(oracle, x)
        for name, value in frame.results().items():
            np.testing.assert_allclose(value, wanted[name], RTOL, ATOL)


def test_a_run_with_large_layers_takes_a_millisecond_at_most_as_predicted(tmp_path: Path) -> None:
    network = Network((64, 28, 28), 8)
    for _ in range(12):
        network.add("Conv", network.weight(64, 64, 3, 3), pads=[1, 1, 1, 1])
        network.add("Relu")
    file = network.save(tmp_path)
    plan = make_plan(read_program(file), CPU, default_catalogue())
    runs = drawn_runs(plan.program, plan.layers)
    assert len(runs) > 1
    for run in runs:
        assert isinstance(run.drawn, Sketch)
        assert run.drawn.image_ns + run.drawn.call_ns <= LONGEST_NS
    loaded = load_program(read_program(file), CPU)
    x = torch.randn(1, 64, 28, 28)
    oracle = by_definition(load_program(read_program(file), CPU, reference_catalogue()), x)
    for name, value in run_serially(loaded, {"x": x}).items():
        np.testing.assert_allclose(value, oracle[name], 1e-3, 1e-4)  # twelve Winograds deep
