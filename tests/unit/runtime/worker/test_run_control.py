"""Runs are ended from another thread, whenever their options are made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brisk.segments.frame import RunControl
from brisk.segments.onnxruntime import onnxruntime
from support.runtime.runtime_process import quick_model


@pytest.mark.parametrize("are_made", [False, True], ids=["made later", "made before"])
def test_a_run_that_was_ended_before_it_began_computes_nothing(
    tmp_path: Path, *, are_made: bool
) -> None:
    own = RunControl()
    if are_made:
        own.options(shrinks_arena=False)
    model = quick_model(tmp_path / "model.onnx")
    session = onnxruntime().InferenceSession(str(model))
    feeds = {"x": np.ones((2, 4), np.float32)}
    own.end()
    with pytest.raises(Exception, match="terminate"):
        session.run(["y"], feeds, own.options(shrinks_arena=False))
    own.renew()
    (y,) = session.run(["y"], feeds, own.options(shrinks_arena=False))
    np.testing.assert_array_equal(y, -feeds["x"])
