"""Spelled-out activations are recognised whatever the order, and only they."""

from __future__ import annotations

import pytest

from brisk.graph.reader import build_program
from support.models.graph_models import model, random, scalar
from support.models.graph_oracle import checked, operators

GELUS = {
    "half last": "e = Div(x, r2) f = Erf(e) a = Add(f, one) m = Mul(x, a) y = Mul(m, half)",
    "half first": "h = Mul(x, half) e = Mul(x, i2) f = Erf(e) a = Add(one, f) y = Mul(h, a)",
    "half inside": "e = Div(x, r2) f = Erf(e) a = Add(f, one) m = Mul(half, a) y = Mul(x, m)",
    "halved": "e = Div(x, r2) f = Erf(e) a = Add(f, one) m = Mul(x, a) y = Div(m, two)",
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
}
HARD = {
    "quotient": "a = Add(x, three) b = Clip(a, zero, six) m = Mul(x, b) y = Div(m, six)",
    "gate first": "a = Add(three, x) b = Clip(a, zero, six) g = Div(b, six) y = Mul(g, x)",
}


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        *((body, "Gelu") for body in GELUS.values()),
        *((body, "HardSwish") for body in HARD.values()),
        ("s = Sigmoid(x) y = Mul(s, x)", "Swish"),
    ],
)
def test_spelled_out_activations_are_recognised(body: str, wanted: str) -> None:
    made = model(f"g (float[N,7] x) => (y) {{{body}}}", **NUMBERS)
    checked(made, {"x": 2 * random(3, 7)}, [wanted])


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
