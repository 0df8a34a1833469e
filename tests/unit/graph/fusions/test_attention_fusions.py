"""Attention is recognised in its usual spellings, and not where shapes may differ."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.graph.reader import build_program
from support.models.graph_models import model, random, scalar
from support.models.graph_oracle import checked, operators

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


def self_attention(*, value_source: str = "x", heads: str = "N,L,2,4", behind: str = "") -> str:
    """A model's text: three products of ``x``, their heads, attention, and heads side by side."""
    return f"""g (float[N,L,6] x, float[N,L,6] other, float[N,1,1,L] mask)
        => (float[N,L,8] y{behind}) <float[{heads}] qs, float[N,L,2,4] t> {{
        qm = MatMul(x, qw) q = Add(qb, qm) qs = Reshape(q, s) qh = Transpose <perm=[0,2,1,3]> (qs)
        km = MatMul(x, kw) k = Add(kb, km) ks = Reshape(k, s) kh = Transpose <perm=[0,2,3,1]> (ks)
        v = MatMul({value_source}, vw) vs = Reshape(v, s) vh = Transpose <perm=[0,2,1,3]> (vs)
        p = MatMul(qh, kh) c = Div(p, d) u = Add(c, mask) w = Softmax(u) a = MatMul(w, vh)
        t = Transpose <perm=[0,2,1,3]> (a) y = Reshape(t, f)}}"""


SELF_ATTENTION = {
    "qw": random(6, 8),
    "kw": random(6, 8, seed=1),
    "vw": random(6, 8, seed=2),
    "qb": random(8, seed=3),
    "kb": random(8, seed=4),
    "d": scalar(2),
    "s": np.array([0, 0, 2, 4]),
    "f": np.array([0, 0, 8]),
}


def self_attention_inputs() -> dict[str, np.ndarray]:
    x, other = random(3, 5, 6, seed=5), random(3, 5, 6, seed=6)
    return {"x": x, "other": other, "mask": random(3, 1, 1, 5, seed=7)}


def test_attention_of_a_sequence_to_itself_is_one_layer() -> None:
    made = model(self_attention(), **SELF_ATTENTION)
    main = checked(made, self_attention_inputs(), ["SelfAttention"]).layers[0].main
    assert main.inputs == ("x", "qw", "qb", "kw", "kb", "vw", "", "mask")
    assert main.attributes["heads"] == 2
    assert main.attributes["scale"] == 0.5


@pytest.mark.parametrize(
    ("changed", "behind"),
    [({"value_source": "other"}, 1), ({"behind": ", float[N,L,8] v"}, 1)],
    ids=["values of another sequence", "a product that is an output"],
)
def test_products_that_serve_something_else_stay_layers(
    changed: dict[str, str], behind: int
) -> None:
    made = model(self_attention(**changed), **SELF_ATTENTION)
    found = operators(build_program(made))
    assert found.count("Linear") == 3
    assert found.count("Attention") == behind
