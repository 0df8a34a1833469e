"""``brisk explain`` of models that ONNX Runtime computes."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper
from typer.testing import CliRunner

from brisk.cli.application import application
from unit.segments.segment_models import info, save


def explained(path: Path) -> tuple[int, str]:
    done = CliRunner().invoke(application, ["explain", str(path)])
    return done.exit_code, done.output


def test_an_operator_of_onnxruntime_alone_is_told_with_its_segment(tmp_path: Path) -> None:
    node = helper.make_node(
        "TransposeMatMul", ["x", "x"], ["y"], domain="com.microsoft", name="square", transB=1
    )
    shapes = [info("x", 4, 4)], [info("y", 4, 4)]
    domains = {"": 17, "com.microsoft": 1}
    path = save(tmp_path / "model.onnx", [node], *shapes, domains=domains)
    status, text = explained(path)
    assert status == 0, text
    assert "computed by ONNX Runtime" in text
    assert "TransposeMatMul" in text
    assert "1 nodes, square to square" in text


def test_what_neither_knows_is_an_error(tmp_path: Path) -> None:
    node = helper.make_node("Nonesuch", ["x"], ["y"])
    path = save(tmp_path / "model.onnx", [node], [info("x", 4)], [info("y", 4)])
    with pytest.raises(Exception, match="Nonesuch"):
        CliRunner().invoke(
            application, ["explain", str(path)], catch_exceptions=False, standalone_mode=False
        )
