"""What `brisk bench siblings` makes of its starts, and of a model's weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from brisk_bench.harness.report import Report
from brisk_bench.siblings import ALONE, BARE, BARE_OWN, SHARED, Starts, add_checks, write_sibling
from support.models.segment_models import info, save


def report(shared: dict[str, float]) -> Report:
    made = Report("siblings", {}, {}, [], [])
    for model, ratio in shared.items():
        made.rows.append({"model": model, "side": SHARED, "first_over_warm": ratio})
        made.rows.append({"model": model, "side": ALONE, "first_over_warm": 9.0})
    add_checks(made)
    return made


def test_each_model_and_their_median_have_an_aim() -> None:
    checks = report({"a": 1.05, "b": 1.25, "c": 1.1}).checks
    assert [(each.value, each.ok) for each in checks] == [
        (1.05, True),
        (1.25, False),
        (1.1, True),
        (1.1, True),
    ]


def test_a_model_that_nobody_has_prepared_has_an_aim_of_its_own() -> None:
    rows = [{"model": "a", "side": side, "first_over_warm": 1.6} for side in (BARE, BARE_OWN)]
    made = Report("siblings", {}, {}, rows, [])
    add_checks(made)
    assert [(each.name, each.ok) for each in made.checks] == [
        ("a: first answer of an unprepared sibling over warm", False)
    ]


def test_a_row_is_of_medians_and_of_ratios_within_a_round() -> None:
    starts = Starts(
        load_s=[0.1, 0.3, 0.2],
        answers_s=[[0.02, 0.01, 0.01], [0.06, 0.02, 0.02], [0.04, 0.03, 0.01]],
        warm_s=[0.01, 0.02, 0.02],
        more_bytes=[1_000_000, 3_000_000, 2_000_000],
    )
    row = starts.row()
    assert row["load_ms"] == pytest.approx(200)
    assert row["first_ms"] == pytest.approx(40)
    assert row["third_ms"] == pytest.approx(10)
    assert row["first_over_warm"] == pytest.approx(2)
    assert row["mb"] == pytest.approx(2)


def test_a_sibling_has_the_same_nodes_and_other_weights(tmp_path: Path) -> None:
    weights = {"w": np.ones((4, 4), "f4"), "one": np.array(2.0, "f4"), "s": np.array([-1, 4])}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Mul", ["p", "one"], ["m"]),
        helper.make_node("Reshape", ["m", "s"], ["y"]),
    ]
    path = save(tmp_path / "one.onnx", nodes, [info("x", "n", 4)], [info("y", "n", 4)], weights)
    write_sibling(path, tmp_path / "other.onnx")
    other = onnx.load(tmp_path / "other.onnx")
    assert [node.op_type for node in other.graph.node] == ["MatMul", "Mul", "Reshape"]
    found = {each.name: numpy_helper.to_array(each) for each in other.graph.initializer}
    assert not np.array_equal(found["w"], weights["w"])
    np.testing.assert_allclose(found["w"], 1, atol=0.01)
    assert found["one"] == weights["one"]
    np.testing.assert_array_equal(found["s"], weights["s"])
