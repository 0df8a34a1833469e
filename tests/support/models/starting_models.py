"""Small models for tests of starts, on disk, with inputs and the warm program's answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch

from brisk.execution.frame import run_serially
from brisk.execution.loading import load_program
from brisk.graph.reader import read_program
from support.models.graph_models import model, random

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Example:
    """A model file, inputs for it, and what it answers when all is loaded first."""

    path: Path
    inputs: dict[str, torch.Tensor]
    expected: dict[str, torch.Tensor]

    def check(self, outputs: dict[str, object]) -> None:
        assert outputs.keys() == self.expected.keys()
        for name, value in outputs.items():
            assert isinstance(value, torch.Tensor)
            torch.testing.assert_close(value, self.expected[name], rtol=1e-4, atol=1e-5)


def save(made: onnx.ModelProto, directory: Path, **shapes: tuple[int, ...]) -> Example:
    """The model as ``1/model.onnx`` below ``directory``; ``shapes`` of its inputs."""
    (directory / "1").mkdir(parents=True, exist_ok=True)
    path = directory / "1" / "model.onnx"
    onnx.save(made, str(path))
    generator = torch.Generator().manual_seed(7)
    inputs = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    expected = run_serially(load_program(read_program(path), CPU), inputs)
    return Example(path, inputs, expected)  # type: ignore[arg-type]  # tensors all


def small_network(directory: Path) -> Example:
    """Convolutions of several kinds, pooling, an addition, a product, a constant output."""
    text = """g (float[N,3,24,24] x) => (float[N,10] y, float[4] k) {
    a = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (x, w1, b1)
    r = Relu (a)
    m = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r)
    c = Conv <kernel_shape=[1,1]> (m, w2)
    d = Conv <kernel_shape=[3,3], pads=[1,1,1,1], group=16> (m, w3)
    s = Add (c, d)
    t = Relu (s)
    u = Conv <kernel_shape=[3,3], pads=[0,0,1,1], strides=[2,2]> (t, w4)
    g2 = GlobalAveragePool (u)
    f = Flatten (g2)
    h = MatMul (f, w5)
    y = Softmax (h)
    k = Identity (k0)
    }"""
    made = model(
        text,
        w1=random(16, 3, 3, 3, seed=1),
        b1=random(16, seed=2),
        w2=random(16, 16, 1, 1, seed=3),
        w3=random(16, 1, 3, 3, seed=4),
        w4=random(32, 16, 3, 3, seed=5) * np.float32(0.2),
        w5=random(32, 10, seed=6),
        k0=random(4, seed=8),
    )
    return save(made, directory, x=(1, 3, 24, 24))


def chain(directory: Path, count: int) -> Example:
    """``count`` products, each with a matrix of its own, and nothing that fuses them."""
    lines = [
        f"v{i + 1} = MatMul (t{i}, w{i})\n t{i + 1} = Softmax (v{i + 1})" for i in range(count)
    ]
    text = f"g (float[N,16] t0) => (float[N,16] t{count}) {{\n" + "\n".join(lines) + "}"
    weights = {f"w{index}": random(16, 16, seed=index) for index in range(count)}
    return save(model(text, **weights), directory, t0=(2, 16))
