"""Each fusion finds its pattern, means the same, and leaves alone what only looks alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from graph_models import integers, model, positive, random, scalar
from graph_oracle import apply_epilogue, evaluate, expected, operators

from brisk.graph import build_program
from brisk.graph.program import Program

IMAGE = random(2, 3, 8, 8)


def checked(
    made: onnx.ModelProto, inputs: dict[str, Any], wanted: list[str], tolerance: float = 1e-5
) -> Program:
    """The program of ``made``, which has the ``wanted`` layers and computes the same."""
    program = build_program(made)
    for ours, theirs in zip(evaluate(program, inputs), expected(made, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    assert operators(program) == wanted
    return program


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


def test_a_product_with_bias_is_linear_whatever_the_rank() -> None:
    weights = {"w": random(4, 5), "c": random(5)}
    text = "(y) {h = MatMul(x, w) n = Add(c, h) y = Relu(n)}"
    for shape in ("N,4", "N,3,4", "N,2,3,4"):
        sizes = [2 if size == "N" else int(size) for size in shape.split(",")]
        made = model(f"g (float[{shape}] x) => {text}", **weights)
        program = checked(made, {"x": random(*sizes)}, ["Linear+Relu"])
        assert program.layers[0].main.inputs == ("x", "w", "c")
        assert program.layers[0].main.domain == "brisk"


GELUS = {
    "half last": "e = Div(x, r2) f = Erf(e) a = Add(f, one) m = Mul(x, a) y = Mul(m, half)",
    "half first": "h = Mul(x, half) e = Mul(x, i2) f = Erf(e) a = Add(one, f) y = Mul(h, a)",
    "half inside": "e = Div(x, r2) f = Erf(e) a = Add(f, one) m = Mul(half, a) y = Mul(x, m)",
    "halved": "e = Div(x, r2) f = Erf(e) a = Add(f, one) m = Mul(x, a) y = Div(m, two)",
}
TANH_GELUS = {
    "cube": "p = Pow(x, three) q = Mul(c, p) s = Add(x, q) t = Mul(s, k) h = Tanh(t)"
    " a = Add(h, one) m = Mul(x, a) y = Mul(m, half)",
    "products": "p = Mul(x, x) p3 = Mul(p, x) q = Mul(p3, c) s = Add(x, q) t = Mul(k, s)"
    " h = Tanh(t) a = Add(one, h) m = Mul(half, x) y = Mul(m, a)",
    "square": "p = Mul(x, x) q = Mul(p, c) s = Add(one, q) u = Mul(x, k) t = Mul(u, s)"
    " h = Tanh(t) a = Add(one, h) m = Mul(half, x) y = Mul(m, a)",
}
NUMBERS = {
    "r2": scalar(2**0.5),
    "i2": scalar(0.5**0.5),
    "one": scalar(1),
    "half": scalar(0.5),
    "two": scalar(2),
    "three": scalar(3),
    "six": scalar(6),
    "zero": scalar(0),
    "c": scalar(0.044715),
    "k": scalar((2 / np.pi) ** 0.5),
    "slope": scalar(1.702),
}
HARD = {
    "quotient": "a = Add(x, three) b = Clip(a, zero, six) m = Mul(x, b) y = Div(m, six)",
    "gate first": "a = Add(three, x) b = Clip(a, zero, six) g = Div(b, six) y = Mul(g, x)",
    "hard sigmoid": "g = HardSigmoid <alpha = 0.16666667> (x) y = Mul(x, g)",
}


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        *((body, "Gelu") for body in (*GELUS.values(), *TANH_GELUS.values())),
        *((body, "HardSwish") for body in HARD.values()),
        ("a = Add(x, three) b = Clip(a, zero, six) y = Div(b, six)", "HardSigmoid"),
        ("s = Sigmoid(x) y = Mul(s, x)", "Swish"),
        ("t = Mul(x, slope) s = Sigmoid(t) y = Mul(x, s)", "Swish"),
    ],
)
def test_spelled_out_activations_are_recognised(body: str, wanted: str) -> None:
    made = model(f"g (float[N,7] x) => (y) {{{body}}}", **NUMBERS)
    program = checked(made, {"x": 2 * random(3, 7)}, [wanted])
    approximate = program.layers[0].main.attributes.get("approximate", "none")
    assert (approximate == "tanh") == (body in TANH_GELUS.values())


@pytest.mark.parametrize(
    "body",
    [
        "e = Div(x, two) f = Erf(e) a = Add(f, one) m = Mul(x, a) y = Mul(m, half)",
        "e = Div(x, r2) f = Erf(e) a = Add(f, two) m = Mul(x, a) y = Mul(m, half)",
        "a = Add(x, two) b = Clip(a, zero, six) m = Mul(x, b) y = Div(m, six)",
    ],
)
def test_other_constants_make_other_functions(body: str) -> None:
    program = build_program(model(f"g (float[N,7] x) => (y) {{{body}}}", **NUMBERS))
    assert not {"Gelu", "HardSwish"} & set(operators(program))


def test_an_activation_whose_inside_is_read_elsewhere_stays_spelled_out() -> None:
    body = "s = Sigmoid(x) y = Mul(s, x)"
    made = model(f"g (float[N,7] x) => (y, s) {{{body}}}")
    checked(made, {"x": random(3, 7)}, ["Sigmoid", "Mul"])


NORMS = {
    "power and quotient": "q = Pow(d, two) v = ReduceMean (q, last) a = Add(v, eps) r = Sqrt(a)"
    " n = Div(d, r)",
    "square and reciprocal": "q = Mul(d, d) v = ReduceMean (q, last) a = Add(eps, v) r = Sqrt(a)"
    " i = Reciprocal(r) n = Mul(d, i)",
    "inverse power": "q = Mul(d, d) v = ReduceMean (q, last) a = Add(eps, v) i = Pow(a, minus)"
    " n = Mul(i, d)",
}
NORM_WEIGHTS = {
    "two": scalar(2),
    "eps": scalar(1e-3),
    "minus": scalar(-0.5),
    "last": integers(-1),
    "g": random(6, seed=3),
    "b": random(6, seed=4),
}


@pytest.mark.parametrize("form", NORMS)
@pytest.mark.parametrize("affine", ["k = Mul(g, n) y = Add(k, b)", "y = Mul(n, g)", "y = Abs(n)"])
def test_layer_normalization_is_recognised(form: str, affine: str) -> None:
    head = "m = ReduceMean (x, last) d = Sub(x, m)"
    made = model(f"g (float[N,5,6] x) => (y) {{{head} {NORMS[form]} {affine}}}", **NORM_WEIGHTS)
    tail = ["Abs"] if "Abs" in affine else []
    checked(made, {"x": random(2, 5, 6)}, ["LayerNormalization", *tail])


def test_root_mean_square_normalization_is_recognised() -> None:
    body = NORMS["square and reciprocal"].replace("(d, d)", "(x, x)").replace("(d, i)", "(x, i)")
    made = model(f"g (float[N,5,6] x) => (y) {{{body} y = Mul(n, g)}}", **NORM_WEIGHTS)
    checked(made, {"x": random(2, 5, 6)}, ["RMSNormalization"])


def test_normalization_over_other_axes_stays_spelled_out() -> None:
    head = "m = ReduceMean (x, last) d = Sub(x, m)"
    form = NORMS["power and quotient"]
    weights = {**NORM_WEIGHTS, "last": integers(1)}
    made = model(f"g (float[N,5,6] x) => (y) {{{head} {form} y = Abs(n)}}", **weights)
    assert "LayerNormalization" not in operators(build_program(made))


ATTENTIONS = {
    "scaled scores": ("kt = Transpose <perm = [0,1,3,2]> (k) s = MatMul(q, kt) t = Div(s, c)", 0),
    "scaled operands": (
        "kt = Transpose <perm = [0,1,3,2]> (k) a = Mul(q, c) b = Mul(kt, c) t = MatMul(a, b)",
        0,
    ),
    "key already transposed": ("kt = Abs(kk) s = MatMul(q, kt) t = Mul(s, c)", 2),
    "both transposes in one": (
        "kt = Transpose <perm = [0,2,3,1]> (kn) s = MatMul(q, kt) t = Mul(s, c)",
        1,
    ),
}


@pytest.mark.parametrize("form", ATTENTIONS)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("guarded", [True, False])
def test_attention_is_recognised(form: str, masked: bool, guarded: bool) -> None:
    body, extra = ATTENTIONS[form]
    mask = "u = Add(mask, t)" if masked else "u = Identity(t)"
    guard = "i = IsNaN(p) o = Where(i, nil, p)" if guarded else "o = Identity(p)"
    made = model(
        f"""g (float[N,2,L,8] q, float[N,2,L,8] k, float[N,2,8,L] kk, float[N,L,2,8] kn,
        float[N,2,L,8] v, float[N,1,L,L] mask) => (y) {{{body} {mask}
        p = Softmax (u) {guard} y = MatMul(o, v)}}""",
        c=scalar(0.4),
        nil=scalar(0),
    )
    inputs = {
        "q": random(3, 2, 5, 8),
        "k": random(3, 2, 5, 8, seed=1),
        "kk": random(3, 2, 8, 5, seed=2),
        "kn": random(3, 5, 2, 8, seed=3),
        "v": random(3, 2, 5, 8, seed=4),
        "mask": random(3, 1, 5, 5, seed=5),
    }
    before = [["Attention"], ["Transpose", "Attention"], ["Abs", "Transpose", "Attention"]][extra]
    program = checked(made, inputs, before)
    main = program.layers[-1].main
    assert len(main.inputs) == 3 + masked
    assert main.attributes["zero_masked_rows"] == int(guarded)


def test_a_mask_that_may_widen_the_scores_is_no_part_of_attention() -> None:
    made = model(
        """g (float[N,2,L,8] q, float[N,2,8,L] k, float[N,2,L,8] v, float[M,1,L,L] m) => (y) {
        s = MatMul(q, k) u = Add(s, m) p = Softmax (u) y = MatMul(p, v)}"""
    )
    assert "Attention" not in operators(build_program(made))


def test_heads_that_may_broadcast_are_no_attention() -> None:
    made = model(
        """g (float[N,H,L,8] q, float[N,G,8,L] k, float[N,G,L,8] v) => (y) {
        s = MatMul(q, k) p = Softmax (s) y = MatMul(p, v)}"""
    )
    assert "Attention" not in operators(build_program(made))


def test_dynamically_quantised_products_are_recognised_though_they_share_an_input() -> None:
    def branch(name: str, bias: bool) -> str:
        add = f"{name} = Add({name}f, {name}b)" if bias else f"{name} = Identity({name}f)"
        return f"""{name}i = MatMulInteger(q, {name}w, z, {name}z)
        {name}c = Cast <to = 1> ({name}i)  {name}s = Mul(s, {name}k)
        {name}f = Mul({name}c, {name}s)  {add}"""

    weights: dict[str, np.ndarray] = {}
    for seed, name in enumerate(("y", "u")):
        weights |= {
            f"{name}w": np.random.default_rng(seed).integers(-127, 127, (4, 5)).astype(np.int8),
            f"{name}z": np.array(3, np.int8),
            f"{name}k": scalar(0.02),
            f"{name}b": random(5),
        }
    made = model(
        f"""g (float[N,3,4] x) => (y, u) {{q, s, z = DynamicQuantizeLinear(x)
        {branch("y", True)} {branch("u", False)}}}""",
        **weights,
    )
    program = checked(made, {"x": random(2, 3, 4)}, ["DynamicQuantizedLinear"] * 2)
    assert program.layers[0].main.inputs == ("x", "yw", "yk", "yz", "yb")
    assert program.layers[1].main.inputs[:2] == ("x", "uw")
