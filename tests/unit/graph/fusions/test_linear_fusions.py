"""Products with constant weights become one layer with bias, activation and quantisation."""

from __future__ import annotations

import numpy as np

from support.models.graph_models import model, random, scalar
from support.models.graph_oracle import checked


def test_a_product_with_bias_is_linear_whatever_the_rank() -> None:
    weights = {"w": random(4, 5), "c": random(5)}
    text = "(y) {h = MatMul(x, w) n = Add(c, h) y = Relu(n)}"
    for shape in ("N,4", "N,3,4", "N,2,3,4"):
        sizes = [2 if size == "N" else int(size) for size in shape.split(",")]
        made = model(f"g (float[{shape}] x) => {text}", **weights)
        program = checked(made, {"x": random(*sizes)}, ["Linear+Relu"])
        assert program.layers[0].main.inputs == ("x", "w", "c")
        assert program.layers[0].main.domain == "brisk"


def test_dynamically_quantised_products_are_recognised_though_they_share_an_input() -> None:
    def branch(name: str, bias: bool) -> str:
        add = f"{name} = Add({name}f, {name}b)" if bias else f"{name} = Identity({name}f)"
        return f"""{name}i = MatMulInteger(q, {name}w, z, {name}z)
        {name}c = Cast <to = 1> ({name}i)  {name}s = Mul(s, {name}k)
        {name}f = Mul({name}c, {name}s)  {add}"""

    weights: dict[str, np.ndarray] = {}
    for seed, name in enumerate(("y", "u")):
        weights |= {
            f"{name}w": np.random.default_rng(seed).integers(-127, 127, (4, 5)).astype(np.int8),
            f"{name}z": np.array(3, np.int8),
            f"{name}k": scalar(0.02),
            f"{name}b": random(5),
        }
    made = model(
        f"""g (float[N,3,4] x) => (y, u) {{q, s, z = DynamicQuantizeLinear(x)
        {branch("y", True)} {branch("u", False)}}}""",
        **weights,
    )
    program = checked(made, {"x": random(2, 3, 4)}, ["DynamicQuantizedLinear"] * 2)
    assert program.layers[0].main.inputs == ("x", "yw", "yk", "yz", "yb")
    assert program.layers[1].main.inputs[:2] == ("x", "uw")
