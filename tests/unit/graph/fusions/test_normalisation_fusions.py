"""Spelled-out normalisations are recognised over trailing axes, and only there."""

from __future__ import annotations

import pytest

from brisk.graph.reader import build_program
from support.models.graph_models import integers, model, random, scalar
from support.models.graph_oracle import checked, operators

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
