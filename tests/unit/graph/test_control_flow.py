"""Bodies become programs of their own that name what they read from outside."""

from __future__ import annotations

import numpy as np

from brisk.graph.program import Program
from brisk.graph.reader import build_program
from support.models.graph_models import model, random
from support.models.graph_oracle import check_integrity, evaluate, expected, operators

BRANCHES = """g (bool c, float[N,4] x) => (float[N,4] y) {
  h = Abs(x)
  y = If (c) <
    then_branch = t () => (float[N,4] a) {k = Mul(w, w)  p = Mul(h, k)  a = Relu(p)},
    else_branch = e () => (float[N,4] b) {b = Identity(h)}> }"""


def body(program: Program, name: str, layer: int = -1) -> Program:
    found = program.layers[layer].attributes[name]
    assert isinstance(found, Program)
    return found


def test_branches_compute_what_they_did_and_capture_outer_values() -> None:
    made = model(BRANCHES, w=random(4))
    program = build_program(made)
    assert program.layers[-1].captures == ("h",)
    assert body(program, "then_branch").captures == ("h",)
    for condition in (True, False):
        inputs = {"c": np.array(condition), "x": random(3, 4, seed=1)}
        np.testing.assert_allclose(
            evaluate(program, inputs)[0], expected(made, inputs)[0], rtol=1e-6
        )


def test_outer_constants_are_constants_of_the_body_and_fold_there() -> None:
    branch = body(build_program(model(BRANCHES, w=random(4))), "then_branch")
    assert [layer.operator for layer in branch.layers] == ["Mul", "Relu"]
    (weight,) = branch.weights.values()
    np.testing.assert_allclose(weight, random(4) ** 2)


def test_a_captured_value_lives_until_the_body_has_run() -> None:
    program = build_program(model(BRANCHES, w=random(4)))
    check_integrity(program)
    assert "h" in program.last_use[-1]
    assert "h" not in {name for names in program.last_use[:-1] for name in names}


def test_an_output_of_a_body_that_is_no_result_of_it_is_copied() -> None:
    branch = body(build_program(model(BRANCHES, w=random(4))), "else_branch")
    assert [layer.operator for layer in branch.layers] == ["Identity"]


def test_loops_carry_and_collect() -> None:
    made = model(
        """g (int64 n, float[2] x) => (float[2] y, float[K,2] z) {
          go = Constant <value_int = 1> ()  once = Cast <to = 9> (go)
          y, z = Loop (n, once, x) <body = b (int64 i, bool c, float[2] s)
            => (bool more, float[2] t, float[2] u) {
              more = Identity(c)  t = Add(s, w)  u = Mul(t, t)}> }""",
        w=random(2),
    )
    inputs = {"n": np.array(3, np.int64), "x": random(2, seed=1)}
    for ours, theirs in zip(
        evaluate(build_program(made), inputs), expected(made, inputs), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_scans_run_over_an_axis() -> None:
    made = model(
        """g (float[2] s, float[5,2] x) => (float[2] y, float[5,2] z) {
          y, z = Scan <num_scan_inputs = 1, body = b (float[2] a, float[2] v)
            => (float[2] o, float[2] p) {o = Add(a, v)  p = Identity(o)}> (s, x) }"""
    )
    inputs = {"s": random(2), "x": random(5, 2, seed=1)}
    program = build_program(made)
    for ours, theirs in zip(evaluate(program, inputs), expected(made, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    inner = body(program, "body")
    outputs = [variable.name for variable in inner.outputs]
    assert len(set(outputs)) == 2


def test_a_body_inside_a_body_captures_through_both() -> None:
    made = model(
        """g (bool c, float[2] x) => (float[2] y) {
          h = Neg(x)
          y = If (c) <
            then_branch = t () => (float[2] a) {
              a = If (c) <then_branch = tt () => (float[2] d) {d = Exp(h)},
                          else_branch = te () => (float[2] d2) {d2 = Abs(h)}> },
            else_branch = e () => (float[2] b) {b = Sqrt(h)}> }"""
    )
    program = build_program(made)
    assert set(program.layers[-1].captures) == {"c", "h"}
    inputs = {"c": np.array(True), "x": random(2)}
    np.testing.assert_allclose(evaluate(program, inputs)[0], np.exp(-random(2)), rtol=1e-6)


def test_names_that_bodies_share_stay_apart() -> None:
    made = model(
        """g (bool c, float[2] x) => (float[2] y) {
          y = If (c) <
            then_branch = t () => (float[2] r) {
              k = Constant <value_float = 2.0> ()  r = Mul(x, k)},
            else_branch = e () => (float[2] r) {
              k = Constant <value_float = 3.0> ()  r = Mul(x, k)}> }"""
    )
    program = build_program(made)
    for condition, factor in ((True, 2), (False, 3)):
        inputs = {"c": np.array(condition), "x": random(2)}
        np.testing.assert_allclose(evaluate(program, inputs)[0], random(2) * factor, rtol=1e-6)


def test_a_condition_that_is_a_constant_leaves_only_its_branch() -> None:
    made = model(
        """g (float[1,4] x) => (float[4] y, float[1,4] z) {
          k = Relu(x)
          s = Shape(x)  d = Gather <axis = 0> (s, place)  c = Equal(d, one)
          y, z = If (c) <
            then_branch = t () => (float[4] a, float[1,4] k2) {
              k = Exp(x)  a = Squeeze(k, place1)  k2 = Mul(k, w)},
            else_branch = e () => (float[1,4] b, float[1,4] b2) {
              b = Identity(k)  b2 = Identity(k)}> }""",
        place=np.array(0, np.int64),
        place1=np.array([0], np.int64),
        one=np.array(1, np.int64),
        w=random(4),
    )
    program = build_program(made)
    assert operators(program) == ["Exp", "Squeeze", "Mul", "Identity", "Identity"]
    x = random(1, 4, seed=2)
    y, z = evaluate(program, {"x": x})
    np.testing.assert_allclose(y, np.exp(x)[0], rtol=1e-6)
    np.testing.assert_allclose(z, np.exp(x) * random(4), rtol=1e-6)
