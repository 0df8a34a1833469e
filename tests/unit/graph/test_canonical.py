"""Old forms of operators mean the same after they were brought to the newest form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from brisk.graph.operators import newest_version
from brisk.graph.program import Program
from brisk.graph.reader import build_program
from support.models.graph_models import integers, model, positive, random
from support.models.graph_oracle import evaluate, expected


def is_newest(program: Program) -> bool:
    return all(
        layer.version == newest_version(layer.operator, layer.domain) for layer in program.layers
    )


X = random(2, 6, 4, 4)

AGAINST_REFERENCE = {
    "Clip's bounds": (7, "y = Clip <min = -0.5, max = 0.25> (x)"),
    "Clip with one bound": (10, "y = Clip <max = 0.25> (x)"),
    "Clip without bounds": (9, "y = Clip (x)"),
    "Unsqueeze's axes": (11, "y = Unsqueeze <axes = [0, 3]> (x)"),
    "ReduceMean's axes": (13, "y = ReduceMean <axes = [1, -1], keepdims = 0> (x)"),
    "ReduceMax over everything": (11, "y = ReduceMax (x)"),
    "ReduceSum's axes": (11, "y = ReduceSum <axes = [2]> (x)"),
    "Split's sizes": (11, "y, z = Split <axis = 1, split = [2, 4]> (x)"),
    "Split in equal parts": (13, "y, z = Split <axis = 1> (x)"),
    "Slice's bounds": (9, "y = Slice <axes = [1, 2], starts = [1, 0], ends = [5, -1]> (x)"),
    "Slice without axes": (7, "y = Slice <starts = [0, 1], ends = [1, 100]> (x)"),
    "Pad's amounts": (10, "y = Pad <pads = [0,0,1,2,0,0,3,4], value = 1.5> (x)"),
    "Pad by reflection": (9, 'y = Pad <mode = "reflect", pads = [0,0,1,2,0,0,3,2]> (x)'),
    "TopK's count": (9, "y, z = TopK <axis = -1, k = 2> (x)"),
    "Dropout": (9, "d = Dropout <ratio = 0.3> (x) y = Neg(d)"),
    "Cast": (7, "y = Cast <to = 7> (x)"),
    "Transpose's default": (7, "y = Transpose (x)"),
    "Sum of several": (8, "y = Sum (x, x, x)"),
}


@pytest.mark.parametrize("case", AGAINST_REFERENCE)
def test_attributes_that_became_inputs_keep_their_meaning(case: str) -> None:
    opset, body = AGAINST_REFERENCE[case]
    outputs = "y, z" if "y, z" in body else "y"
    made = model(f"g (float[2,6,4,4] x) => ({outputs}) {{{body}}}", opset)
    program = build_program(made)
    assert is_newest(program)
    for ours, theirs in zip(evaluate(program, {"x": X}), expected(made, {"x": X}), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def softmax_of_matrix(x: np.ndarray, axis: int) -> np.ndarray:
    rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
    powers = np.exp(rows - rows.max(1, keepdims=True))
    return (powers / powers.sum(1, keepdims=True)).reshape(x.shape)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_softmax_before_13_sees_a_matrix(axis: int) -> None:
    made = model(f"g (float[N,6,4,4] x) => (y) {{y = Softmax <axis = {axis}> (x)}}", 12)
    (result,) = evaluate(build_program(made), {"x": X})
    np.testing.assert_allclose(result, softmax_of_matrix(X, axis), rtol=1e-5)


def test_softmax_before_13_over_one_wide_axis_stays_one_operator() -> None:
    made = model("g (float[N,6,1,1] x) => (y) {y = Softmax (x)}", 11)
    program = build_program(made)
    assert [layer.operator for layer in program.layers] == ["Softmax"]
    assert program.layers[0].attributes["axis"] == 1


def test_softmax_from_13_on_keeps_its_default() -> None:
    made = model("g (float[N,6,4,4] x) => (y) {y = Softmax (x)}", 13)
    (result,) = evaluate(build_program(made), {"x": X})
    np.testing.assert_allclose(result, expected(made, {"x": X})[0], rtol=1e-6)


def normalised(shape: tuple[int, ...]) -> dict[str, Any]:
    return {
        "s": positive(*shape, seed=1),
        "b": random(*shape, seed=2),
        "m": random(*shape, seed=3),
        "v": positive(*shape, seed=4),
    }


@pytest.mark.parametrize(("spatial", "shape"), [(1, (6,)), (0, (6, 4, 4))])
def test_batch_normalization_before_9_may_be_per_element(
    spatial: int, shape: tuple[int, ...]
) -> None:
    body = f"y = BatchNormalization <spatial = {spatial}, epsilon = 0.01> (x, s, b, m, v)"
    weights = normalised(shape)
    made = model(f"g (float[2,6,4,4] x) => (y) {{{body}}}", 7, **weights)
    (result,) = evaluate(build_program(made), {"x": X})
    s, b, m, v = (array.reshape(1, *shape, *[1] * (3 - len(shape))) for array in weights.values())
    np.testing.assert_allclose(result, (X - m) / np.sqrt(v + 0.01) * s + b, rtol=1e-4, atol=1e-5)


def test_upsample_repeats_pixels() -> None:
    for opset, body in (
        (7, "y = Upsample <scales = [1.0, 1.0, 2.0, 3.0]> (x)"),
        (9, "y = Upsample (x, k)"),
        (10, "y = Resize (x, k)"),
    ):
        weights = {} if opset == 7 else {"k": np.array([1, 1, 2, 3], np.float32)}
        program = build_program(model(f"g (float[2,6,4,4] x) => (y) {{{body}}}", opset, **weights))
        assert [layer.operator for layer in program.layers] == ["Resize"]
        (result,) = evaluate(program, {"x": X})
        np.testing.assert_array_equal(result, X.repeat(2, 2).repeat(3, 3))


def test_linear_upsample_does_not_centre_pixels() -> None:
    made = model(
        'g (float[1,1,1,3] x) => (y) {y = Upsample <mode = "linear"> (x, k)}',
        opset=9,
        k=np.array([1, 1, 1, 2], np.float32),
    )
    x = np.array([0, 2, 4], np.float32).reshape(1, 1, 1, 3)
    (result,) = evaluate(build_program(made), {"x": x})
    np.testing.assert_allclose(result.reshape(-1), [0, 1, 2, 3, 4, 4])


def test_resize_11_with_empty_scales_reads_sizes() -> None:
    body = "y = Resize (x, roi, scales, sizes)"
    made = model(
        f"g (float[2,6,4,4] x) => (y) {{{body}}}",
        opset=11,
        roi=np.zeros(0, np.float32),
        scales=np.zeros(0, np.float32),
        sizes=integers(2, 6, 8, 8),
    )
    program = build_program(made)
    assert program.layers[0].inputs[:3] == ("x", "", "")
    (result,) = evaluate(program, {"x": X})
    assert result.shape == (2, 6, 8, 8)


def test_group_normalization_before_21_scales_groups() -> None:
    s, b = positive(3), random(3)
    body = "y = GroupNormalization <num_groups = 3> (x, s, b)"
    made = model(f"g (float[2,6,4,4] x) => (y) {{{body}}}", 18, s=s, b=b)
    (result,) = evaluate(build_program(made), {"x": X})
    groups = X.reshape(2, 3, -1)
    mean, variance = groups.mean(-1, keepdims=True), groups.var(-1, keepdims=True)
    wanted = (groups - mean) / np.sqrt(variance + 1e-5) * s[:, None] + b[:, None]
    np.testing.assert_allclose(result, wanted.reshape(X.shape), rtol=1e-4, atol=1e-5)


def test_dropouts_mask_of_old_is_kept() -> None:
    made = model("g (float[2,6,4,4] x) => (y, z) {y, z = Dropout (x)}", 10)
    y, z = evaluate(build_program(made), {"x": X})
    np.testing.assert_array_equal(y, X)
    assert z.all()


def test_bounds_take_the_type_of_what_they_bound() -> None:
    made = model("g (float16[4] x) => (float16[4] y) {y = Clip <min = 0.0> (x)}", 7)
    program = build_program(made)
    bound = program.layers[0].inputs[1]
    assert program.weights[bound].dtype == np.float16


def test_scatter_becomes_scatter_elements_and_its_values_stay() -> None:
    made = model(
        "g (float[3,3] x) => (y) {y = Scatter <axis = 0> (x, i, u)}",
        opset=9,
        i=np.array([[2, 1, 0]], np.int64),
        u=np.array([[7, 8, 9]], np.float32),
    )
    program = build_program(made)
    assert [layer.operator for layer in program.layers] == ["ScatterElements"]
    (result,) = evaluate(program, {"x": np.zeros((3, 3), np.float32)})
    np.testing.assert_array_equal(result, [[0, 0, 9], [0, 8, 0], [7, 0, 0]])


def test_dfts_axis_becomes_an_input() -> None:
    body = "y = DFT <axis = 1, onesided = 1> (x, n)"
    made = model(f"g (float[1,8,1] x) => (y) {{{body}}}", 17, n=np.array(8, np.int64))
    x = random(1, 8, 1)
    (result,) = evaluate(build_program(made), {"x": x})
    wanted = np.fft.rfft(x[..., 0], axis=1)
    np.testing.assert_allclose(result[..., 0] + 1j * result[..., 1], wanted, rtol=1e-4, atol=1e-5)


def test_a_scan_of_the_first_form_keeps_its_version() -> None:
    scanned = "b (float[2] v) => (float[2] r) {r = Neg(v)}"
    body = f"y = Scan <num_scan_inputs = 1, body = {scanned}> (, x)"
    made = model(f"g (float[1,3,2] x) => (y) {{{body}}}", 8)
    (layer,) = build_program(made).layers
    assert (layer.operator, layer.version) == ("Scan", 8)


def test_constants_of_new_nodes_never_take_an_existing_name() -> None:
    made = model("g (float[4] q) => (y) {y = Clip <min = 0.0> (q)}", 7)
    made.graph.input[0].name = made.graph.node[0].input[0] = "y.min"
    (result,) = evaluate(build_program(made), {"y.min": np.array([-1, 0, 1, 2], np.float32)})
    np.testing.assert_array_equal(result, [0, 0, 1, 2])
