"""Operators that ONNX Runtime's optimiser writes are read as standard ones."""

from __future__ import annotations

from math import erf

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from brisk.errors import UnsupportedOperatorError
from brisk.graph.reader import build_program
from support.models.graph_models import positive, random
from support.models.graph_oracle import evaluate, operators


def contributed(graph: str, **weights: np.ndarray) -> onnx.ModelProto:
    head = '<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>'
    made = parser.parse_model(f"{head} {graph}")
    for name, array in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


X = random(2, 3, 4)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(erf)(x / 2**0.5))


def test_gelu_with_and_without_bias() -> None:
    graph = "g (float[N,3,4] x) => (y) {{y = com.microsoft.{} }}"
    plain = contributed(graph.format("Gelu(x)"))
    np.testing.assert_allclose(evaluate(build_program(plain), {"x": X})[0], gelu(X), rtol=1e-5)
    biased = contributed(graph.format("BiasGelu(x, b)"), b=random(4))
    (result,) = evaluate(build_program(biased), {"x": X})
    np.testing.assert_allclose(result, gelu(X + random(4)), rtol=1e-4, atol=1e-6)


def test_quick_gelu_is_a_swish() -> None:
    made = contributed("g (float[N,3,4] x) => (y) {y = com.microsoft.QuickGelu(x)}")
    program = build_program(made)
    assert operators(program) == ["Swish"]
    (result,) = evaluate(program, {"x": X})
    np.testing.assert_allclose(result, X / (1 + np.exp(-1.702 * X)), rtol=1e-5)


def test_fused_products_are_transposed_and_scaled() -> None:
    body = "y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, w)"
    made = contributed(f"g (float[N,3,4] x) => (y) {{{body}}}", w=random(5, 4))
    program = build_program(made)
    assert operators(program) == ["MatMul", "Mul"]
    (result,) = evaluate(program, {"x": X})
    np.testing.assert_allclose(result, X @ random(5, 4).T * 0.5, rtol=1e-4, atol=1e-6)


def test_a_residual_normalisation_gives_its_sum_too() -> None:
    body = "y, , , s = com.microsoft.SkipLayerNormalization <epsilon = 0.001> (x, r, g, b, c)"
    made = contributed(
        f"m (float[N,3,4] x, float[N,3,4] r) => (y, s) {{{body}}}",
        g=positive(4),
        b=random(4),
        c=random(4, seed=1),
    )
    other = random(2, 3, 4, seed=2)
    y, s = evaluate(build_program(made), {"x": X, "r": other})
    total = X + other + random(4, seed=1)
    np.testing.assert_allclose(s, total, rtol=1e-5, atol=1e-6)
    normal = (total - total.mean(-1, keepdims=True)) / np.sqrt(
        total.var(-1, keepdims=True) + 0.001
    )
    np.testing.assert_allclose(y, normal * positive(4) + random(4), rtol=1e-3, atol=1e-4)


def test_quantised_operators_are_float_ones_between_scalings() -> None:
    made = contributed(
        """g (uint8[2,3,4] x) => (y) {
        a = com.microsoft.QLinearAdd(x, s, z, w, t, z, u, z)
        y = com.microsoft.QLinearLeakyRelu <alpha = 0.5> (a, u, z, u, z)}""",
        s=np.array(0.1, np.float32),
        t=np.array(0.2, np.float32),
        u=np.array(0.25, np.float32),
        z=np.array(128, np.uint8),
        w=np.array([100, 128, 140, 200], np.uint8),
    )
    x = np.random.default_rng(0).integers(0, 255, (2, 3, 4)).astype(np.uint8)
    (result,) = evaluate(build_program(made), {"x": x})
    total = (x.astype(int) - 128) * 0.1 + (np.array([100, 128, 140, 200]) - 128) * 0.2
    added = np.clip(np.rint(total / 0.25), -128, 127) * 0.25
    wanted = np.rint(np.where(added < 0, added / 2, added) / 0.25) + 128
    assert result.dtype == np.uint8
    np.testing.assert_allclose(result, wanted, atol=1)


def test_a_quantised_gemm_has_a_bias_in_units_of_both_scales() -> None:
    made = contributed(
        """g (uint8[2,4] x) => (y) {
        y = com.microsoft.QGemm <transB = 1> (x, s, z, w, t, n, c)}""",
        s=np.array(0.1, np.float32),
        z=np.array(128, np.uint8),
        w=np.arange(-6, 6, dtype=np.int8).reshape(3, 4),
        t=np.array(0.5, np.float32),
        n=np.array(0, np.int8),
        c=np.array([10, -20, 30], np.int32),
    )
    x = np.array([[128, 130, 120, 255], [0, 1, 2, 3]], np.uint8)
    (result,) = evaluate(build_program(made), {"x": x})
    whole = (x.astype(int) - 128) @ np.arange(-6, 6).reshape(3, 4).T + np.array([10, -20, 30])
    np.testing.assert_allclose(result, whole * 0.05, rtol=1e-5)


def test_the_others_are_refused_by_name() -> None:
    made = contributed("g (float[N,3,4] x) => (y) {y = com.microsoft.BiasSplitGelu(x)}")
    with pytest.raises(UnsupportedOperatorError, match=r"BiasSplitGelu, domain com\.microsoft"):
        build_program(made)
