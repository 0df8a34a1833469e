"""Loads that take longer than anybody waits: they are given up, and nothing of them goes on."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from brisk.protocol.runtime_paths import RuntimePaths
from brisk.runtime.models.load_watch import ABANDONED_S
from brisk.runtime.sessions.attempts import exchange_attempt
from support.models.segment_models import info, save
from support.runtime.runtime_process import describe, infer, opened, processes_of, worker_of
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.timing, pytest.mark.beside, pytest.mark.usefixtures("private_cache")]

ROWS = np.ones((3, 4), np.float32)
SIZE = 2048


def folding_model(path: Path) -> Path:
    """A few kilobytes whose constants take minutes to fold: products of large matrices, more than
    a model may have that is optimised before it is READY."""
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [1e-3])
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["c"], value=value),
        helper.make_node("ConstantOfShape", ["size"], ["p0"], value=value),
    ]
    for step in range(600):
        nodes.append(helper.make_node("MatMul", [f"p{step}", "c"], [f"p{step + 1}"]))
    nodes.append(helper.make_node("ReduceMax", [f"p{step + 1}"], ["m"], keepdims=0))
    nodes.append(helper.make_node("Add", ["x", "m"], ["y"]))
    size = {"size": np.array([SIZE, SIZE])}
    return save(path, nodes, [info("x", "n", 4)], [info("y", "n", 4)], size)


def test_what_computes_for_a_model_ends_with_it(
    place: RuntimePaths, quick: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime folds constants for minutes, for a session that nobody wants any more."""
    folding = folding_model(tmp_path / "folding.onnx")
    with opened(place, describe(quick)) as innocent:
        worker = worker_of(place)
        with opened(place, describe(folding)):
            time.sleep(2.0)
        began_s = time.monotonic()
        while worker in processes_of(place):
            np.testing.assert_array_equal(infer(innocent, ROWS), -ROWS)
            with TIMED:
                assert time.monotonic() - began_s < ABANDONED_S + 10, "it goes on"
            time.sleep(0.05)
        np.testing.assert_array_equal(infer(innocent, ROWS), -ROWS)
    text = f"looking after {folding} has gone on for {ABANDONED_S:g} s although nobody waits"
    assert text in capfd.readouterr().err
    with exchange_attempt(folding, most_deaths=1) as may_be_tried:
        assert may_be_tried, "the worker's end counts against a model that nobody wanted"


def test_what_takes_too_long_behind_a_load_is_not_tried_without_end(
    place: RuntimePaths, quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_MAX_LOAD_S", "1")
    folding = folding_model(tmp_path / "folding.onnx")
    with opened(place, describe(quick)) as innocent:
        worker = worker_of(place)
        with opened(place, describe(folding)), TIMED:
            wait_until(lambda: worker not in processes_of(place), "its end", ABANDONED_S + 10)
        np.testing.assert_array_equal(infer(innocent, ROWS), -ROWS)
    with exchange_attempt(folding, most_deaths=1) as may_be_tried:
        assert not may_be_tried
