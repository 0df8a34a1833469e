"""The one more cut of a model that arrives: where it leaves least behind the last byte."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk.segments.model import late_cut as module
from brisk.segments.model.extraction import normalise
from brisk.segments.model.late_cut import late_cut
from brisk.segments.model.model_file import read_model_file
from brisk.segments.model.sources import BareModel
from support.models.segment_models import chain, info, save


def cut_of(path: Path) -> str:
    model = read_model_file(path)
    normalise(model.proto)
    return late_cut(model)


def with_a_wide_end(path: Path, width: int = 2048) -> Path:
    """Much to compute on few weights, then many weights that are computed with quickly."""
    rng = np.random.default_rng(0)
    kernel = (rng.standard_normal((64, 64, 3, 3)) / 24).astype("f4")
    last = (rng.standard_normal((64, width)) / 8).astype("f4")
    nodes = []
    previous = "x"
    for layer in range(8):
        nodes.append(helper.make_node("Conv", [previous, "k"], [f"c{layer}"], pads=[1, 1, 1, 1]))
        previous = f"c{layer}"
    nodes += [
        helper.make_node("GlobalAveragePool", [previous], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["y"]),
    ]
    inputs, outputs = [info("x", 1, 64, 56, 56)], [info("y", 1, width)]
    return save(path, nodes, inputs, outputs, {"k": kernel, "w": last})


def test_it_stands_before_the_weights_that_come_last(tmp_path: Path) -> None:
    path = with_a_wide_end(tmp_path / "model.onnx")
    value = cut_of(path)
    assert value == "flat"
    cut = BareModel(path, 1, (value,))
    bare = BareModel(path, 1)
    assert len(cut.plan.segments) == len(bare.plan.segments) + 1
    assert [sum(part.size for part in cut.reads(index)) for index in range(-1, 0)] == [
        64 * 2048 * 4
    ]


def test_there_is_none_where_every_byte_is_needed_at_once(tmp_path: Path) -> None:
    """A product alone; a model of one node has no border."""
    weights = {"w": np.ones((512, 512), np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = save(tmp_path / "one.onnx", nodes, [info("x", 1, 512)], [info("y", 1, 512)], weights)
    assert cut_of(path) == ""


def test_what_is_late_is_what_is_left_of_the_last_two_segments() -> None:
    """Four nodes of 100 ns; 12.5, 0, 0 and 25 bytes, of which 0.125 come a nanosecond."""
    elapsed = list(accumulate([100.0] * 4, initial=0.0))
    come = list(accumulate([12.5, 0.0, 0.0, 25.0], initial=0.0))
    assert module._late_ns(elapsed, come, 0, 3) == 100.0 + max(0.0, 300.0 - 25 / 0.125)
    assert module._late_ns(elapsed, come, 0, 0) == 400.0
    assert module._late_ns(elapsed, come, 2, 3) == 100.0


@pytest.mark.parametrize("layers", [3, 9])
def test_a_cut_is_a_value_that_the_model_can_be_cut_behind(tmp_path: Path, layers: int) -> None:
    path = chain(tmp_path / "model.onnx", layers=layers)
    value = cut_of(path)
    cut = BareModel(path, 1, (value,) if value else ())
    crossing = [name for segment in cut.plan.segments[:-1] for name in segment.outputs]
    assert not value or value in crossing
