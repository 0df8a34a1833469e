"""Attention is recognised in its usual spellings, and not where shapes may differ."""

from __future__ import annotations

import pytest
from graph_models import model, random, scalar
from graph_oracle import checked, operators

from brisk.graph import build_program

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
