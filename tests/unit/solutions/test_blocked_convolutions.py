"""Convolutions by the compiled library, against torch in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from brisk.errors import BriskError
from brisk.execution.loading import LoadedProgram, load_program
from brisk.execution.plan import make_plan
from brisk.execution.serial import run_serially
from brisk.graph.reader import build_program
from brisk.solutions import opaque
from brisk.solutions.catalogue import default_catalogue, reference_catalogue
from brisk.solutions.convolution_blocked import SOLUTIONS

pytestmark = pytest.mark.usefixtures("instruction_set", "threads_restored")

CPU, CATALOGUE = torch.device("cpu"), default_catalogue()


class Case:
    """A convolution of random weights with a bias, then a sum with ``z`` if any, then Relu."""

    def __init__(
        self,
        weight: tuple[int, ...],
        sizes: tuple[object, ...],
        *,
        second: tuple[object, ...] | None = None,
        activation: str = "Relu",
        **attributes: object,
    ) -> None:
        generator = np.random.default_rng(0)
        self.attributes = attributes
        scale = 1 / np.sqrt(np.prod(weight[1:]))
        self.weight = (generator.standard_normal(weight) * scale).astype(np.float32)
        self.bias = generator.standard_normal(weight[0]).astype(np.float32)
        self.activation = activation
        nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], **attributes)]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)]
        if second is not None:
            inputs.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, second))
            nodes.append(helper.make_node("Add", ["c", "z"], ["s"]))
        nodes.append(helper.make_node(activation, [nodes[-1].output[0]], ["y"]))
        graph = helper.make_graph(
            nodes,
            "convolution",
            inputs,
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(self.weight, "w"), numpy_helper.from_array(self.bias, "b")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
        self.program = build_program(model)
        self.loaded: LoadedProgram = load_program(self.program, CPU)

    @property
    def solution(self) -> str:
        return self.loaded.layers[0].solution.name

    def check(self, *shapes: tuple[int, ...], tolerance: float = 2e-6) -> None:
        """Greatest difference from double precision, over the greatest result."""
        generator = torch.Generator().manual_seed(1)
        inputs = [torch.randn(shape, generator=generator) for shape in shapes]
        (found,) = run_serially(self.loaded, dict(zip(("x", "z"), inputs, strict=False))).values()
        x, *others = [tensor.double() for tensor in inputs]
        pads = self.attributes.get("pads", (0, 0, 0, 0))
        top, left, bottom, right = pads  # type: ignore[misc]
        expected = torch.conv2d(
            torch.constant_pad_nd(x, (left, right, top, bottom)),
            torch.from_numpy(self.weight).double(),
            torch.from_numpy(self.bias).double(),
            self.attributes.get("strides", 1),
            0,
            self.attributes.get("dilations", 1),
            self.attributes.get("group", 1),
        )
        for other in others:
            expected = expected + other
        expected = getattr(torch, self.activation.lower())(expected)
        assert isinstance(found, torch.Tensor)
        assert found.shape == expected.shape
        assert (found - expected).abs().max() <= tolerance * expected.abs().max()


ANY = ("n", "c", "h", "w")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("weight", "shape", "attributes"),
    [
        ((70, 48, 1, 1), (2, 48, 13, 9), {}),
        ((33, 20, 1, 1), (1, 20, 8, 8), {"strides": [2, 2]}),
        ((40, 16, 5, 3), (3, 16, 12, 17), {"pads": [2, 0, 1, 2]}),
        ((16, 24, 3, 3), (1, 24, 15, 15), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
        ((5, 512, 3, 3), (1, 512, 6, 5), {"strides": [2, 1], "pads": [1, 1, 1, 1]}),
        ((300, 17, 2, 2), (1, 17, 3, 4), {}),
    ],
)
def test_a_blocked_convolution_is_as_exact_as_float32_can_be(
    threads: int,
    weight: tuple[int, ...],
    shape: tuple[int, ...],
    attributes: dict[str, list[int]],
) -> None:
    torch.set_num_threads(threads)
    case = Case(weight, ANY, **attributes)
    assert case.solution == "blocked_convolution"
    case.check(shape)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("channels", "kernel", "sizes", "attributes"),
    [
        (32, (3, 3), (33, 27), {"pads": [1, 1, 1, 1]}),
        (33, (5, 5), (14, 15), {"pads": [2, 2, 2, 2], "strides": [2, 2]}),
        (7, (3, 1), (9, 40), {"pads": [0, 3, 1, 0], "strides": [1, 2]}),
        (96, (3, 3), (7, 7), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
        (2, (1, 1), (1, 1), {}),
    ],
)
def test_a_depthwise_convolution_of_any_batch_and_size(
    threads: int,
    channels: int,
    kernel: tuple[int, int],
    sizes: tuple[int, int],
    attributes: dict[str, list[int]],
) -> None:
    torch.set_num_threads(threads)
    case = Case((channels, 1, *kernel), ANY, group=channels, **attributes)
    assert case.solution == "depthwise_convolution"
    for batch in (1, 3):
        case.check((batch, channels, *sizes))


def test_a_depthwise_convolution_adds_what_follows_it() -> None:
    case = Case((24, 1, 3, 3), ("n", 24, 9, 9), second=("n", 24, 7, 7), group=24)
    assert case.solution == "depthwise_convolution"
    assert len(case.loaded.layers) == 1
    case.check((2, 24, 9, 9), (2, 24, 7, 7))


def test_a_depthwise_convolution_of_more_rows_than_helpers_can_be_told_of() -> None:
    torch.set_num_threads(2)
    case = Case((2, 1, 1, 3), ANY, group=2, pads=[0, 1, 0, 1])
    case.check((3, 2, 40_000, 2))


@pytest.mark.parametrize("weight", [(8, 2, 3, 3), (8, 1, 3, 3)])
def test_groups_of_several_channels_or_outputs_are_other_solutions(
    weight: tuple[int, ...],
) -> None:
    case = Case(weight, ("n", 4 * weight[1], 9, 9), group=4)
    assert case.solution != "depthwise_convolution"
    case.check((2, 4 * weight[1], 9, 9))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("name", "size", "tolerance"),
    [("winograd_convolution", 16, 2e-6), ("wide_winograd_convolution", 26, 2e-5)],
)
@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [0, 0, 0, 0], [0, 2, 1, 0]])
def test_winograds_tiles_at_edges_and_in_batches_are_within_their_rounding(
    threads: int, name: str, size: int, tolerance: float, pads: list[int]
) -> None:
    torch.set_num_threads(threads)
    case = Case((150, 112, 3, 3), ("n", 112, size, size), pads=pads)
    assert case.solution == name
    case.check((1, 112, size, size), tolerance=tolerance)
    case.check((3, 112, size, size), tolerance=tolerance)


def test_maps_of_unknown_size_take_any_size_from_one_pixel_on() -> None:
    case = Case((32, 32, 3, 3), ANY, pads=[1, 1, 1, 1])
    assert case.solution == "wide_winograd_convolution"
    for size in ((1, 1), (2, 7), (5, 4), (33, 18)):
        case.check((2, 32, *size), tolerance=2e-5)


@pytest.mark.parametrize("weight", [(48, 64, 1, 1), (64, 64, 3, 3)])
def test_a_sum_is_fused_where_the_operand_has_the_results_shape_and_right_where_not(
    weight: tuple[int, ...],
) -> None:
    case = Case(weight, ANY, second=("n2", "c2", "h2", "w2"))
    result = (2, weight[0], 10, 10)
    edge = 10 + weight[2] - 1
    for second in (result, (1, weight[0], 1, 1), (2, 1, 10, 1), (1, 1, 1, 1)):
        case.check((2, weight[1], edge, edge), second, tolerance=2e-5)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_sum_with_an_operand_known_to_fit_is_part_of_the_layer(batch: int) -> None:
    case = Case((80, 64, 3, 3), ("n", 64, 28, 28), second=("n", 80, 26, 26))
    assert len(case.loaded.layers) == 1
    case.check((batch, 64, 28, 28), (batch, 80, 26, 26), tolerance=2e-5)


@pytest.mark.parametrize("activation", ["Sigmoid", "Tanh"])
def test_other_activations_are_fused(activation: str) -> None:
    Case((40, 32, 1, 1), ANY, activation=activation).check((1, 32, 9, 9))


def test_an_empty_batch_gives_an_empty_result() -> None:
    case = Case((40, 32, 1, 1), ANY)
    (found,) = run_serially(case.loaded, {"x": torch.zeros(0, 32, 4, 4)}).values()
    assert isinstance(found, torch.Tensor)
    assert found.shape == (0, 40, 4, 4)


@pytest.mark.parametrize("shape", [(1, 31, 9, 9), (1, 32, 2, 9)])
def test_an_input_of_other_channels_or_too_small_is_refused(shape: tuple[int, ...]) -> None:
    case = Case((40, 32, 3, 3), ANY)
    with pytest.raises(BriskError, match="cannot take an input of shape"):
        run_serially(case.loaded, {"x": torch.zeros(shape)})


@pytest.mark.parametrize(
    ("name", "size"), [("winograd_convolution", 15), ("wide_winograd_convolution", 26)]
)
@pytest.mark.parametrize("has_second", [False, True])
def test_infinite_and_absent_numbers_reach_what_the_definition_says(
    name: str, size: int, has_second: bool
) -> None:
    shape = (2, 64, size, size)
    second = (2, 72, size, size) if has_second else None
    case = Case((72, 64, 3, 3), shape, second=second, pads=[1, 1, 1, 1])
    assert case.solution == name
    x, z = torch.randn(shape), torch.randn(2, 72, size, size)
    x[0, 0, 0, 0], x[0, 9, 6, 5], x[1, 31, size - 1, size - 1] = np.inf, -np.inf, np.nan
    x[0, 3, 9, 9] = 3e38  # finite, but not so in a tile's form
    x[0, 4, 9, 9] = -3e38
    x[1, 7, :8, :8] = np.nan
    inputs = {"x": x, "z": z} if has_second else {"x": x}
    (found,) = run_serially(case.loaded, inputs).values()
    oracle = load_program(case.program, CPU, reference_catalogue())
    (expected,) = run_serially(oracle, inputs).values()
    assert isinstance(expected, torch.Tensor)
    assert not expected.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4, equal_nan=True)


def test_transformed_weights_are_plain_tensors() -> None:
    case = Case((64, 64, 3, 3), ANY)
    (problem,) = (planned.problem for planned in make_plan(case.program, CPU, CATALOGUE).layers)
    for solution in SOLUTIONS:
        weights = solution.transform(problem)
        assert not any(map(opaque.is_opaque, weights.values()))
        assert all(tensor.is_contiguous() for tensor in weights.values())
