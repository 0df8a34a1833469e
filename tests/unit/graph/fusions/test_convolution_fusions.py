"""What scales and shifts the channels of a convolution becomes part of it."""

from __future__ import annotations

import numpy as np
import pytest

from support.models.graph_models import model, positive, random, scalar
from support.models.graph_oracle import checked

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
    checked(made, {"x": IMAGE}, ["Conv", "Relu"])


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
        "g (float[N,3,8,8] x) => (y) {h = Conv (x, w) k = Mul(h, f) p = Add(a, k) y = Mul(p, d)}",
        w=random(4, 3, 3, 3),
        f=random(4, 1, 1, seed=1),
        a=random(1, 4, 1, 1, seed=2),
        d=scalar(2.5),
    )
    checked(made, {"x": IMAGE}, ["Conv"])


def test_a_constant_that_varies_over_the_image_stays() -> None:
    made = model(
        "g (float[N,3,8,8] x) => (y) {h = Conv (x, w) y = Mul(h, f)}",
        w=random(4, 3, 3, 3),
        f=random(1, 1, 6, 6),
    )
    checked(made, {"x": IMAGE}, ["Conv", "Mul"])
