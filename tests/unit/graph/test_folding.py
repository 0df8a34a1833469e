"""Slices and look-ups of constants are computed while a model is read, and sizes known before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from brisk.graph.reader import build_program
from support.models.graph_models import integers, model, random
from support.models.graph_oracle import evaluate, expected, operators


def _bounds(seed: int, steps: Sequence[int] = (1, 2, 3, -1, -2)) -> dict[str, np.ndarray]:
    """Starts, ends, axes and steps for two axes of 6 and 9, also beyond them and from behind."""
    made = np.random.default_rng(seed)
    return {
        "starts": integers(*made.integers(-12, 12, 2)),
        "ends": integers(*made.integers(-12, 12, 2)),
        "axes": integers(*([0, 1], [1, 0], [-1, 0], [-2, -1])[seed % 4]),
        "steps": integers(*made.choice(steps, 2)),
    }


@pytest.mark.parametrize("seed", range(40))
def test_a_slice_of_a_constant_is_what_the_definition_says(seed: int) -> None:
    made = model(
        """g (float[N] x) => (y) {s = Slice(w, starts, ends, axes, steps) t = ReduceSum(s)
        y = Add(x, t)}""",
        18,
        w=random(6, 9),
        **_bounds(seed),
    )
    program = build_program(made)
    x = {"x": random(3)}
    np.testing.assert_allclose(evaluate(program, x)[0], expected(made, x)[0], rtol=1e-5)


@pytest.mark.parametrize("seed", range(40))
def test_the_size_of_a_slice_is_that_of_its_result(seed: int) -> None:
    """Steps forwards: for those backwards ``onnx.shape_inference`` itself is wrong at times."""
    made = model(
        "g (float[6,9] x) => (y) {s = Slice(x, starts, ends, axes, steps) y = Relu(s)}",
        18,
        **_bounds(seed, (1, 2, 3)),
    )
    x = {"x": random(6, 9)}
    (result,) = expected(made, x)
    assert build_program(made).outputs[0].type.shape == result.shape


def test_positions_up_to_the_length_of_the_input_are_looked_up_while_the_model_is_read() -> None:
    made = model(
        """g (float[1,5,4] x) => (y) {l = Shape(x) n = Gather(l, one) m = Unsqueeze(n, zero)
        p = Slice(positions, zero, m, one_axis) e = Gather(w, p) y = Add(x, e)}""",
        18,
        one=np.array(1),
        zero=integers(0),
        one_axis=integers(1),
        positions=np.arange(16, dtype=np.int64)[None],
        w=random(16, 4),
    )
    program = build_program(made)
    assert operators(program) == ["Add"]
    x = {"x": random(1, 5, 4)}
    np.testing.assert_allclose(evaluate(program, x)[0], expected(made, x)[0], rtol=1e-6)


def test_a_look_up_beyond_the_constant_is_left_to_the_run() -> None:
    made = model(
        "g (float[N] x) => (y) {e = Gather(w, p) y = Add(x, e)}", 18, w=random(4), p=integers(9)
    )
    assert operators(build_program(made)) == ["Gather", "Add"]
