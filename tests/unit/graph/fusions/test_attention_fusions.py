"""Attention is recognised in its usual spellings, whatever its operands' sizes."""

from __future__ import annotations

import pytest

from brisk.graph.reader import build_program
from support.models.graph_models import model, random, scalar
from support.models.graph_oracle import checked, operators

ATTENTIONS = {
    "scaled scores": (
        "kt = Transpose <perm = [0,1,3,2]> (k) s = MatMul(q, kt) t = Div(s, c)",
        ["Transpose"],
    ),
    "scaled operands": (
        "kt = Transpose <perm = [0,1,3,2]> (k) a = Mul(q, c) b = Mul(kt, c) t = MatMul(a, b)",
        ["Transpose"],
    ),
    "key already transposed": ("kt = Abs(kk) s = MatMul(q, kt) t = Mul(s, c)", ["Abs"]),
}


@pytest.mark.parametrize("form", ATTENTIONS)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("guarded", [True, False])
def test_attention_is_recognised(form: str, masked: bool, guarded: bool) -> None:
    body, before = ATTENTIONS[form]
    mask = "u = Add(mask, t)" if masked else "u = Identity(t)"
    guard = "i = IsNaN(p) o = Where(i, nil, p)" if guarded else "o = Identity(p)"
    made = model(
        f"""g (float[N,2,L,8] q, float[N,2,L,8] k, float[N,2,8,L] kk, float[N,2,L,8] v,
        float[N,1,L,L] mask) => (y) {{{body} {mask}
        p = Softmax (u) {guard} y = MatMul(o, v)}}""",
        c=scalar(0.4),
        nil=scalar(0),
    )
    inputs = {
        "q": random(3, 2, 5, 8),
        "k": random(3, 2, 5, 8, seed=1),
        "kk": random(3, 2, 8, 5, seed=2),
        "v": random(3, 2, 5, 8, seed=4),
        "mask": random(3, 1, 5, 5, seed=5),
    }
    program = checked(made, inputs, [*before, "Attention"])
    main = program.layers[-1]
    assert len(main.inputs) == 3 + masked
    assert main.attributes["zero_masked_rows"] == int(guarded)


def test_operands_may_broadcast() -> None:
    made = model(
        """g (float[N,H,L,8] q, float[N,G,8,L] k, float[N,G,L,8] v, float[M,1,L,L] m) => (y) {
        s = MatMul(q, k) u = Add(s, m) p = Softmax (u) y = MatMul(p, v)}"""
    )
    inputs = {"q": random(1, 2, 5, 8), "k": random(1, 1, 8, 5), "v": random(1, 1, 5, 8)}
    checked(made, inputs | {"m": random(3, 1, 5, 5)}, ["Attention"])


@pytest.mark.parametrize(
    "heads",
    [
        "float[N,L,8] q, float[N,8,L] k, float[N,L,8] v",
        "double[N,2,L,8] q, double[N,2,8,L] k, double[N,2,L,8] v",
    ],
)
def test_other_ranks_and_double_precision_stay_spelled_out(heads: str) -> None:
    made = model(f"g ({heads}) => (y) {{s = MatMul(q, k) p = Softmax (s) y = MatMul(p, v)}}")
    assert operators(build_program(made)) == ["MatMul", "Softmax", "MatMul"]


def test_scores_that_something_else_reads_stay_spelled_out() -> None:
    made = model(
        """g (float[N,2,L,8] q, float[N,2,8,L] k, float[N,2,L,8] v) => (y, p) {
        s = MatMul(q, k) p = Softmax (s) y = MatMul(p, v)}"""
    )
    assert operators(build_program(made)) == ["MatMul", "Softmax", "MatMul"]
