"""Pooling of planes in both memory layouts."""

from __future__ import annotations

import pytest
import torch
from onnx import parser

from brisk.execution.frame import run_serially
from brisk.execution.loading import load_program
from brisk.graph.reader import build_program

CPU = torch.device("cpu")


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
