"""Work that need not be done per request is not: folding, copies, shape arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.graph.reader import build_program
from support.models.graph_models import integers, model, random, scalar
from support.models.graph_oracle import evaluate, expected, operators


def test_what_depends_on_constants_alone_is_computed_at_load() -> None:
    made = model(
        """g (float[N,4] x) => (y) {t = Transpose <perm = [1,0]> (w) s = Mul(t, two)
        y = MatMul(x, s)}""",
        w=random(5, 4),
        two=scalar(2),
    )
    program = build_program(made)
    assert operators(program) == ["MatMul"]
    np.testing.assert_allclose(program.weights[program.layers[0].inputs[1]], 2 * random(5, 4).T)


@pytest.mark.parametrize(
    "body",
    [
        "r = RandomNormal <shape = [4]> () y = Add(x, r)",
        "b = Bernoulli(w) y = Add(x, b)",
    ],
)
def test_random_operators_are_not_folded(body: str) -> None:
    made = model(f"g (float[4] x) => (y) {{{body}}}", 18, w=abs(random(4)) / 9)
    assert len(build_program(made).layers) == body.count("=") - body.count("shape")


def test_quantised_weights_are_scaled_back_once_and_activations_as_they_come() -> None:
    made = model(
        """g (float[N,4] x) => (y) {a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z)
        c = DequantizeLinear <axis = 1> (w, t) d = MatMul(b, c) y = Add(d, e)}""",
        s=scalar(0.05),
        z=np.array(3, np.int8),
        w=np.random.default_rng(0).integers(-127, 127, (4, 5)).astype(np.int8),
        opset=21,
        t=abs(random(5)),
        e=random(5),
    )
    program = build_program(made)
    assert operators(program) == ["QuantizeLinear", "DequantizeLinear", "MatMul", "Add"]
    x = {"x": random(2, 4)}
    np.testing.assert_allclose(evaluate(program, x)[0], expected(made, x)[0], rtol=1e-5)


def test_a_constant_that_would_grow_huge_stays_a_layer() -> None:
    made = model(
        "g (float[1] x) => (y) {e = Expand(w, n) s = ReduceSum(e) y = Add(x, s)}",
        w=random(1),
        n=integers(100_000_000),
    )
    assert operators(build_program(made))[0] == "Expand"


def test_what_no_output_needs_is_dropped_with_its_weights() -> None:
    made = model("g (float[N,4] x) => (y) {z = MatMul(x, w) y = Relu(x)}", w=random(4, 4))
    program = build_program(made)
    assert operators(program) == ["Relu"]
    assert not program.weights


COPIES = {
    "Identity": "a = Identity(x)",
    "Dropout": "a = Dropout(x)",
    "Cast to the same type": "a = Cast <to = 1> (x)",
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_vanish(name: str) -> None:
    made = model(f"g (float[2,4] x) => (y) {{{COPIES[name]} y = Relu(a)}}")
    program = build_program(made)
    assert operators(program) == ["Relu"]
    np.testing.assert_array_equal(evaluate(program, {"x": random(2, 4)})[0], random(2, 4).clip(0))


def test_an_output_that_copies_a_result_stays() -> None:
    made = model("g (float[4] x) => (y, z) {h = Relu(x) y = Identity(h) z = Neg(h)}")
    program = build_program(made)
    assert operators(program) == ["Relu", "Identity", "Neg"]
    x = {"x": random(4)}
    for ours, theirs in zip(evaluate(program, x), expected(made, x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_two_outputs_of_one_value_stay_two() -> None:
    made = model("g (float[4] x) => (y, z) {h = Relu(x) y = Identity(h) z = Identity(h)}")
    y, z = evaluate(build_program(made), {"x": random(4)})
    np.testing.assert_array_equal(y, z)


HEADS = """g (float[batch,length,8] x) => (y) {
    s = Shape(x)  b = Gather <axis = 0> (s, i0)  l = Gather <axis = 0> (s, i1)
    bu = Unsqueeze(b, ax)  lu = Unsqueeze(l, ax)
    n = Concat <axis = 0> (bu, lu, h, d)  v = Reshape(x, n)
    t = Transpose <perm = [0,2,1,3]> (v)  y = Abs(t)}"""


def test_shape_arithmetic_around_a_reshape_vanishes() -> None:
    made = model(
        HEADS, i0=np.array(0), i1=np.array(1), ax=integers(0), h=integers(2), d=integers(4)
    )
    program = build_program(made)
    assert operators(program) == ["Reshape", "Transpose", "Abs"]
    assert program.type_of("v").shape == ("batch", "length", 2, 4)
    for sizes in ((1, 3), (5, 2), (0, 4)):
        x = {"x": random(*sizes, 8)}
        np.testing.assert_array_equal(evaluate(program, x)[0], expected(made, x)[0])


def test_a_transpose_through_merged_heads_is_one_transpose() -> None:
    made = model(
        """g (float[batch,2,length,4] x) => (y) {
        s = Shape(x)  l = Slice(s, two, three)  f = Slice(s, zero, two)
        m = Concat <axis = 0> (minus, l, four)  a = Reshape(x, m)
        t = Transpose <perm = [0,2,1]> (a)  o = Concat <axis = 0> (f, four, l)
        r = Reshape(t, o)  y = Abs(r)}""",
        zero=integers(0),
        two=integers(2),
        three=integers(3),
        four=integers(4),
        minus=integers(-1),
    )
    program = build_program(made)
    assert operators(program) == ["Transpose", "Abs"]
    x = {"x": random(3, 2, 5, 4)}
    np.testing.assert_array_equal(evaluate(program, x)[0], expected(made, x)[0])


def test_the_shape_of_a_static_value_is_a_constant() -> None:
    made = model(
        """g (float[2,3] x) => (y) {s = Shape(x) p = ReduceProd(s) f = Cast <to = 1> (p)
        y = Mul(x, f)}"""
    )
    assert operators(build_program(made)) == ["Mul"]


def test_a_size_taken_of_a_partly_known_shape_is_a_constant() -> None:
    made = model(
        """g (float[N,3] x) => (y) {s = Shape(x) l = Slice(s, minus, most) f = Cast <to = 1> (l)
        r = Sqrt(f) y = Div(x, r)}""",
        minus=integers(-1),
        most=integers(2**62),
    )
    program = build_program(made)
    assert operators(program) == ["Div"]
    x = {"x": random(2, 3)}
    np.testing.assert_allclose(evaluate(program, x)[0], expected(made, x)[0], rtol=1e-6)


def test_sizes_that_follow_from_unknown_ones_are_copied_from_the_input() -> None:
    """Names that inference itself gives mean one size each."""
    made = model(
        HEADS.replace("float[batch,length,8] x", "float[batch,m,8] u, float[batch,n,8] w").replace(
            "s = Shape", "x = Concat <axis = 1> (u, w)  s = Shape"
        ),
        i0=np.array(0),
        i1=np.array(1),
        ax=integers(0),
        h=integers(2),
        d=integers(4),
    )
    program = build_program(made)
    assert operators(program) == ["Concat", "Reshape", "Transpose", "Abs"]
    x = {"u": random(3, 2, 8), "w": random(3, 5, 8)}
    np.testing.assert_array_equal(evaluate(program, x)[0], expected(made, x)[0])


def test_exporters_claims_about_outputs_do_not_become_types() -> None:
    made = model("g (float[N,4] x) => (float[1,4] y) {h = Neg(x) y = Relu(h)}")
    assert build_program(made).type_of("y").shape == ("N", 4)
