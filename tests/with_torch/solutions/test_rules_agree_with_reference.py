"""Tuned rules against the operators' definition, where ONNX's own cases do not look."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from brisk.solutions.catalogue import default_catalogue
from support.models.one_node import assert_tuned_agrees, one_node_model, run

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape), np.float32)


def positive(*shape: int) -> np.ndarray:
    return np.asarray(np.abs(floats(*shape)) + 0.5, np.float32)


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"])
@pytest.mark.parametrize("other", [(3, 4), (4,), (1,), (), (2, 1, 1), (5, 2, 3, 4)])
@pytest.mark.parametrize("constants", [(), (1,), (0,)])
def test_binary_operators_broadcast_both_ways(
    operator: str, other: tuple[int, ...], constants: tuple[int, ...]
) -> None:
    inputs = [positive(2, 3, 4), positive(*other)]
    assert_tuned_agrees(operator, inputs, constants)


@pytest.mark.parametrize("operator", ["Add", "Mul", "Less"])
def test_a_constant_of_one_element_raises_the_rank_of_a_scalar(operator: str) -> None:
    assert_tuned_agrees(operator, [floats(), floats(1)], constants=(1,))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("fmod", [0, 1])
def test_modulo_of_integers_has_the_sign_its_definition_says(dtype: Any, fmod: int) -> None:
    x = np.array([-7, 7, -7, 7, 0], np.int64).astype(dtype)
    y = np.array([3, -3, -3, 3, 5], np.int64).astype(dtype)
    y[y == 0] = 1
    assert_tuned_agrees("Mod", [x, y], fmod=fmod)


@pytest.mark.parametrize("steps", [(1, 1), (2, -1), (-2, 3)])
@pytest.mark.parametrize("constants", [(), (1, 2, 3, 4), (1, 3)])
def test_slices_clip_and_walk_backwards(
    steps: tuple[int, int], constants: tuple[int, ...]
) -> None:
    starts = int64(*(1 if step > 0 else 100 for step in steps))
    ends = int64(*(2**62 if step > 0 else -(2**62) for step in steps))
    inputs = [floats(5, 6, 7), starts, ends, int64(0, -1), int64(*steps)]
    assert_tuned_agrees("Slice", inputs, constants)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("places", [[0, -1], [[1, -2], [0, 1]], 1, -1])
@pytest.mark.parametrize("constants", [(), (1,), (0,)])
def test_gather_takes_negative_places(axis: int, places: Any, constants: tuple[int, ...]) -> None:
    inputs = [floats(3, 4, 5), np.array(places, np.int64)]
    assert_tuned_agrees("Gather", inputs, constants, axis=axis)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("constants", [(1,), ()])
def test_padding_in_every_mode(mode: str, constants: tuple[int, ...]) -> None:
    assert_tuned_agrees("Pad", [floats(2, 3, 5), int64(0, 1, 2, 0, 2, 3)], constants, mode=mode)


@pytest.mark.parametrize("shape", [(3, 9), (2, 3, 5)])
@pytest.mark.parametrize("amount", [(0, 3), (2, 1), (4, 0), (7, 0)])
def test_reflecting_rows(shape: tuple[int, ...], amount: tuple[int, int]) -> None:
    pads = np.zeros((2, len(shape)), np.int64)
    pads[:, -1] = amount
    assert_tuned_agrees("Pad", [floats(*shape), pads.reshape(-1)], (1,), mode="reflect")


@pytest.mark.parametrize("place", [0, -1, 2])
def test_gathering_one_place_is_a_slice(place: int) -> None:
    assert_tuned_agrees("Gather", [floats(3, 4), int64(place)], (1,))


@pytest.mark.parametrize("target", [[0, -1], [2, 0, -1, 1], [-1], [4, 6]])
@pytest.mark.parametrize("constants", [(1,), ()])
def test_reshape_copies_and_infers_sizes(target: list[int], constants: tuple[int, ...]) -> None:
    assert_tuned_agrees("Reshape", [floats(2, 3, 4), int64(*target)], constants)


@pytest.mark.parametrize("shape", [(1, 3, 7, 8), (1, 2, 9), (1, 2, 5, 6, 7)])
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(("ceil", "before", "after"), [(0, 1, 1), (1, 1, 1), (0, 0, 1), (0, 2, 0)])
def test_pooling_with_even_and_uneven_pads(
    shape: tuple[int, ...], operator: str, ceil: int, before: int, after: int
) -> None:
    """Not with uneven pads and ceil_mode: onnx.reference puts what that adds on both sides."""
    axes = len(shape) - 2
    attributes = {"kernel_shape": [3] * axes, "strides": [2] * axes, "ceil_mode": ceil}
    pads = [before] * axes + [after] * axes
    assert_tuned_agrees(operator, [floats(*shape)], rtol=1e-4, pads=pads, **attributes)


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_ceil_mode_adds_a_window_behind_uneven_pads(operator: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
    attributes = {"kernel_shape": [3], "strides": [3], "pads": [0, 1], "ceil_mode": 1}
    model = one_node_model(operator, [x], attributes)
    (y,), _ = run(model, [x], default_catalogue())
    np.testing.assert_array_equal(y, [[[2, 5]] if operator == "MaxPool" else [[1, 4]]])


@pytest.mark.parametrize("power", [1, 2, 3])
def test_lp_pooling_with_a_power(power: int) -> None:
    attributes = {"kernel_shape": [3, 2], "strides": [2, 2], "p": power}
    assert_tuned_agrees("LpPool", [positive(2, 3, 7, 8)], rtol=1e-4, **attributes)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_division_of_integers_truncates_towards_zero(dtype: Any) -> None:
    """Not what onnx.reference did before version 14 of the operator was made precise."""
    inputs = [np.array([-7, 7, -7, 7], dtype), np.array([2, -2, -2, 2], dtype)]
    (quotient,), _ = run(one_node_model("Div", inputs, {}), inputs, default_catalogue())
    assert quotient.tolist() == [-3, -3, 3, 3]
    assert quotient.dtype == dtype


@pytest.mark.parametrize("pads", [[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]])
@pytest.mark.parametrize("include", [0, 1])
def test_average_pooling_counts_padding_as_asked(pads: list[int], include: int) -> None:
    attributes = {"kernel_shape": [3, 2], "strides": [1, 2], "pads": pads}
    assert_tuned_agrees(
        "AveragePool", [floats(1, 2, 6, 6)], count_include_pad=include, **attributes
    )


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
)
@pytest.mark.parametrize("scales", [[1, 1, 2, 3], [1, 1, 0.6, 1.7]])
def test_resizing_in_every_mode(mode: str, coordinates: str, scales: list[float]) -> None:
    inputs = [floats(1, 2, 5, 6), None, np.array(scales, np.float32)]
    assert_tuned_agrees(
        "Resize",
        inputs,
        (2,),
        rtol=1e-3,
        mode=mode,
        coordinate_transformation_mode=coordinates,
        nearest_mode="floor",
    )


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"])
@pytest.mark.parametrize("axes", [None, [0], [-1, 0], []])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("constants", [(1,), ()])
def test_reductions_over_axes_given_at_any_time(
    operator: str, axes: list[int] | None, keep: int, constants: tuple[int, ...]
) -> None:
    inputs = [floats(2, 3, 4), None if axes is None else int64(*axes)]
    assert_tuned_agrees(operator, inputs, constants, keepdims=keep)


@pytest.mark.parametrize("largest", [0, 1])
def test_the_largest_few_keep_the_order_of_equals(largest: int) -> None:
    x = RANDOM.integers(0, 4, (5, 20)).astype(np.float32)
    assert_tuned_agrees("TopK", [x, int64(7)], (1,), 2, largest=largest)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
def test_scattering_with_negative_places(operator: str, reduction: str) -> None:
    places = int64(0, -1, 1).reshape(3, 1)
    updates = floats(3, 1) if operator == "ScatterElements" else floats(3, 4)
    inputs = [floats(5, 4), places, updates]
    assert_tuned_agrees(operator, inputs, reduction=reduction)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("operator", ["Softmax", "Gelu", "Elu", "HardSwish", "Softplus", "Mish"])
def test_activations_in_every_float_dtype(operator: str, dtype: Any) -> None:
    rtol = 5e-3 if dtype is np.float16 else 1e-5
    x = np.abs(floats(2, 9)).astype(dtype)
    assert_tuned_agrees(operator, [x], rtol=rtol)


@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel"])
@pytest.mark.parametrize("sizes", [[1, 2, 14, 6], [1, 2, 6, 14], [2, 4, 7, 7], [1, 2, 28, 28]])
def test_resizing_to_sizes_copies_the_nearest_element(coordinates: str, sizes: list[int]) -> None:
    inputs = [floats(1, 2, 14, 14), None, None, int64(*sizes)]
    modes = {"coordinate_transformation_mode": coordinates, "nearest_mode": "floor"}
    assert_tuned_agrees("Resize", inputs, (3,), mode="nearest", **modes)


@pytest.mark.parametrize("sizes", [(3, 1), (1, 1, 1), (4,), (2, 3, 4), (1,)])
@pytest.mark.parametrize("constants", [(1,), ()])
def test_expanding_broadcasts_both_ways(
    sizes: tuple[int, ...], constants: tuple[int, ...]
) -> None:
    assert_tuned_agrees(
        "Expand", [floats(3, 4 if sizes[-1] == 4 else 1), int64(*sizes)], constants
    )


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("most", [0, 2, 50])
def test_suppression_of_overlapping_boxes(centred: int, most: int) -> None:
    boxes, scores = positive(2, 40, 4), np.abs(floats(2, 3, 40))
    limits = [np.array([0.4], np.float32), np.array([0.3], np.float32)]
    inputs = [boxes, scores, int64(most), *limits]
    assert_tuned_agrees("NonMaxSuppression", inputs, (2, 3, 4), center_point_box=centred)


@pytest.mark.parametrize("equation", ["bij,bjk->bik", "i j, j", "...ij->...ji", "ii->i"])
def test_contraction_of_subscripts(equation: str) -> None:
    shapes = [(2, 3, 3), (2, 3, 4)] if equation[0] == "b" else [(3, 3), (3,)]
    inputs = [floats(*shape) for shape in shapes][: equation.count(",") + 1]
    assert_tuned_agrees("Einsum", inputs, equation=equation)
