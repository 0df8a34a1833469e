"""What stands around a convolution becomes part of it, where that changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from brisk.graph.reader import build_program
from support.models.graph_models import integers, model, positive, random, scalar
from support.models.graph_oracle import apply_epilogue, checked, evaluate, operators

IMAGE = random(2, 3, 8, 8)


def batch_norm(channels: int, seed: int = 10) -> dict[str, np.ndarray]:
    return {
        "s": positive(channels, seed=seed),
        "b": random(channels, seed=seed + 1),
        "m": random(channels, seed=seed + 2),
        "v": positive(channels, seed=seed + 3),
    }


@pytest.mark.parametrize("bias", [True, False])
def test_batch_normalization_vanishes_in_a_convolution(bias: bool) -> None:
    weights = {"w": random(4, 3, 3, 3, seed=1), **batch_norm(4)}
    if bias:
        weights["c"] = random(4, seed=2)
    inputs = "x, w, c" if bias else "x, w"
    body = f"h = Conv ({inputs}) n = BatchNormalization (h, s, b, m, v) y = Relu(n)"
    made = model(
        f"g (float[N,3,8,8] x) => (y) {{{body}}}",
        **weights,
    )
    checked(made, {"x": IMAGE}, ["Conv+Relu"])


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_batch_normalization_vanishes_in_a_transposed_convolution(groups: int) -> None:
    weight, norm, x = random(4, 3, 3, 3, seed=1), batch_norm(3 * groups), random(2, 4, 8, 8)
    made = model(
        f"""g (float[N,4,8,8] x) => (y) {{
        h = ConvTranspose <strides = [2, 2], group = {groups}> (x, w)
        y = BatchNormalization (h, s, b, m, v)}}""",
        w=weight,
        **norm,
    )
    program = build_program(made)
    assert operators(program) == ["ConvTranspose"]
    _, folded, bias = (
        torch.from_numpy(program.weights.get(name, x).copy())
        for name in program.layers[0].main.inputs
    )

    def convolved(weights: torch.Tensor, offset: torch.Tensor | None) -> torch.Tensor:
        return torch.nn.functional.conv_transpose2d(
            torch.from_numpy(x), weights, offset, 2, groups=groups
        )

    scale, shift, mean, variance = (torch.from_numpy(array) for array in norm.values())
    wanted = torch.nn.functional.batch_norm(
        convolved(torch.from_numpy(weight), None), mean, variance, scale, shift, eps=1e-5
    )
    torch.testing.assert_close(convolved(folded, bias), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transposed", [0, 1])
def test_batch_normalization_vanishes_in_a_gemm(transposed: int) -> None:
    made = model(
        f"""g (float[N,5] x) => (y) {{h = Gemm <transB = {transposed}> (x, w, c)
        y = BatchNormalization (h, s, b, m, v)}}""",
        w=random(*((4, 5) if transposed else (5, 4)), seed=1),
        c=random(4),
        **batch_norm(4),
    )
    checked(made, {"x": random(2, 5)}, ["Gemm"])


def test_a_convolution_that_others_read_keeps_its_batch_normalization() -> None:
    made = model(
        """g (float[N,3,8,8] x) => (y, h) {h = Conv (x, w)
        y = BatchNormalization (h, s, b, m, v)}""",
        w=random(4, 3, 3, 3),
        **batch_norm(4),
    )
    checked(made, {"x": IMAGE}, ["Conv", "BatchNormalization"])


def test_constant_factors_and_summands_per_channel_vanish_in_a_convolution() -> None:
    made = model(
        "g (float[N,3,8,8] x) => (y) {h = Conv (x, w) k = Mul(h, f) p = Sub(k, a) y = Div(p, d)}",
        w=random(4, 3, 3, 3),
        f=random(4, 1, 1, seed=1),
        a=random(1, 4, 1, 1, seed=2),
        d=scalar(2.5),
    )
    checked(made, {"x": IMAGE}, ["Conv"])


def test_constants_before_an_unpadded_convolution_vanish_in_it() -> None:
    made = model(
        "g (float[N,3,8,8] x) => (y) {a = Mul(x, f) b = Add(a, o) c = Mul(t, b) y = Conv (c, w)}",
        w=random(4, 3, 3, 3),
        f=random(3, 1, 1, seed=1),
        o=random(1, 3, 1, 1, seed=2),
        t=scalar(0.5),
    )
    checked(made, {"x": IMAGE}, ["Conv"])


def test_a_summand_before_a_padded_convolution_stays_but_a_factor_goes() -> None:
    made = model(
        """g (float[N,3,8,8] x) => (y) {a = Mul(x, f) b = Add(a, o) c = Mul(t, b)
        y = Conv <pads = [1,1,1,1], group = 3> (c, w)}""",
        w=random(3, 1, 3, 3),
        f=random(3, 1, 1, seed=1),
        o=random(1, 3, 1, 1, seed=2),
        t=scalar(0.5),
    )
    checked(made, {"x": IMAGE}, ["Mul", "Add", "Conv"])


def test_scalars_behind_an_activation_follow_it() -> None:
    made = model(
        "g (float[N,3,8,8] x) => (y) {h = Conv (x, w) r = Relu(h) m = Mul(f, r) y = Add(m, o)}",
        w=random(4, 3, 3, 3),
        f=np.array([0.5], np.float32),
        o=scalar(-0.25),
    )
    program = checked(made, {"x": IMAGE}, ["Conv+Relu+Mul+Add"])
    assert program.layers[0].operands == ("x", "w", "f", "o")


def test_a_constant_that_varies_over_the_image_stays() -> None:
    made = model(
        "g (float[N,3,8,8] x) => (y) {h = Conv (x, w) y = Mul(h, f)}",
        w=random(4, 3, 3, 3),
        f=random(1, 1, 6, 6),
    )
    checked(made, {"x": IMAGE}, ["Conv", "Mul"])


def test_zero_padding_moves_into_the_convolution() -> None:
    text = "g (float[N,3,8,8] x) => (y) {p = Pad (x, a, z) y = Conv <pads = [0,1,0,1]> (p, w)}"
    weights = {"w": random(4, 3, 3, 3), "a": integers(0, 0, 1, 2, 0, 0, 3, 0)}
    made = model(text, z=scalar(0), **weights)
    program = checked(made, {"x": IMAGE}, ["Conv"])
    assert program.layers[0].main.attributes["pads"] == (1, 3, 3, 1)
    checked(model(text, z=scalar(1), **weights), {"x": IMAGE}, ["Pad", "Conv"])


def test_a_residual_is_added_behind_the_convolution_whichever_comes_first() -> None:
    made = model(
        """g (float[N,3,8,8] x) => (y) {
        a = Conv <pads = [1,1,1,1]> (x, w)  b = Exp(x)  c = Neg(b)
        d = Add(c, a)  y = Relu(d)}""",
        w=random(3, 3, 3, 3),
    )
    program = checked(made, {"x": IMAGE}, ["Exp", "Neg", "Conv+Add+Relu"])
    step = program.layers[-1].epilogue[0]
    assert (step.operand, step.operand_first) == ("c", True)


def test_a_residual_of_another_shape_is_not_fused() -> None:
    made = model(
        "g (float[N,3,8,8] x, float[1,3,1,1] r) => (y) {a = Conv (x, w) y = Add(a, r)}",
        w=random(3, 3, 1, 1),
    )
    checked(made, {"x": IMAGE, "r": random(1, 3, 1, 1)}, ["Conv", "Add"])


def test_residuals_over_images_of_unknown_size_are_fused() -> None:
    made = model(
        """g (float[N,3,H,W] x) => (y) {a = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w)
        b = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,2]> (x)
        y = Add(a, b)}""",
        w=random(3, 3, 3, 3),
    )
    checked(made, {"x": IMAGE}, ["MaxPool", "Conv+Add"])


ACTIVATIONS = {
    "Relu": "y = Relu(h)",
    "Sigmoid": "y = Sigmoid(h)",
    "Tanh": "y = Tanh(h)",
    "LeakyRelu": "y = LeakyRelu <alpha = 0.2> (h)",
    "Elu": "y = Elu <alpha = 0.5> (h)",
    "HardSwish": "y = HardSwish(h)",
    "HardSigmoid": "y = HardSigmoid <alpha = 0.3, beta = 0.4> (h)",
    "Clip": "y = Clip(h, low, high)",
    "Silu": "s = Sigmoid(h) y = Mul(h, s)",
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_follow_the_convolution_as_recorded(name: str) -> None:
    made = model(
        f"g (float[N,3,8,8] x) => (y) {{h = Conv (x, w) {ACTIVATIONS[name]}}}",
        w=random(4, 3, 3, 3),
        low=scalar(-0.5),
        high=scalar(1.5),
    )
    program = checked(made, {"x": IMAGE}, [f"Conv+{name}"])
    plain = build_program(
        model("g (float[N,3,8,8] x) => (y) {y = Conv (x, w)}", w=random(4, 3, 3, 3))
    )
    step = program.layers[0].epilogue[0]
    by_record = apply_epilogue(step, evaluate(plain, {"x": IMAGE})[0], None)
    np.testing.assert_allclose(by_record, evaluate(program, {"x": IMAGE})[0], rtol=1e-4, atol=1e-5)
