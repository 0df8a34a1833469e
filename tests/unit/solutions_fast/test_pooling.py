"""Pooling compiled by oneDNN's graph: equal to torch's, and used only for the layout it knows."""

from __future__ import annotations

import onnx
import pytest
import torch
from onnx import parser

from brisk.execution.loading import LoadedProgram, load_program
from brisk.execution.serial import run_serially
from brisk.graph.reader import build_program

CPU = torch.device("cpu")


def pool(shape: str, attributes: str = "pads = [1, 1, 1, 1], strides = [2, 2]") -> LoadedProgram:
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]>\n'
        f"m (float[{shape}] x) => (float[a, b, c, d] y)"
        f"{{ y = MaxPool <kernel_shape = [3, 3], {attributes}> (x) }}"
    )
    return load_program(build_program(onnx.shape_inference.infer_shapes(model), name="m"), CPU)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("shape", "batch"),
    [("N, 32, 48, 56", 1), ("N, 32, 48, 56", 3), ("2, 32, 48, 56", 2)],
)
def test_large_planes_are_pooled_as_torch_does(
    shape: str, layout: torch.memory_format, batch: int
) -> None:
    loaded = pool(shape)
    assert loaded.layers[0].solution.name == "onednn_graph_pooling"
    x = torch.randn(batch, 32, 48, 56).contiguous(memory_format=layout)
    made = run_serially(loaded, {"x": x})["y"]
    assert isinstance(made, torch.Tensor)
    assert torch.equal(made, torch.max_pool2d(x, 3, 2, 1))


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ("N, 8, 16, 16", "strides = [2, 2]"),
        ("N, 32, 48, M", "strides = [2, 2]"),
        ("N, 32, 48, 56", "strides = [2, 2], ceil_mode = 1"),
        ("N, 32, 48, 56", "strides = [2, 2], pads = [0, 0, 1, 1]"),
        ("N, 32, 48, 56", "strides = [2, 2], dilations = [2, 2]"),
    ],
)
def test_other_poolings_are_left_to_torch(shape: str, attributes: str) -> None:
    assert pool(shape, attributes).layers[0].solution.name == "pooling"


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_global_averages_of_small_planes_are_means(layout: torch.memory_format) -> None:
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]>\n'
        "m (float[N, 16, 7, 7] x) => (float[N, 16, 1, 1] y) { y = GlobalAveragePool (x) }"
    )
    loaded = load_program(build_program(model, name="m"), CPU)
    for batch in (0, 1, 4):
        x = torch.randn(batch, 16, 7, 7).contiguous(memory_format=layout)
        made = run_serially(loaded, {"x": x})["y"]
        torch.testing.assert_close(made, x.mean((2, 3), keepdim=True))
