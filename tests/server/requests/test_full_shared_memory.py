"""Answers for which Triton's shared memory has no room."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from support.server.entries import doubled, make_model, write_entry
from support.server.serve_command import Serving

pytestmark = [pytest.mark.timing, pytest.mark.beside]

SMALL = 'mount -t tmpfs -o size=24m tmpfs /dev/shm && exec "$0" "$@"'
UNDER_SMALL = ("unshare", "--mount", "sh", "-c", SMALL)
"""The words before a command that give it a ``/dev/shm`` of 24 MB, as a container's may be."""


def test_an_answer_without_room_is_an_error_and_others_are_answered(
    tmp_path: Path, serve: Serving
) -> None:
    """Else its client waits for ever, and its model's unload, too."""
    if not shutil.which("unshare") or subprocess.run([*UNDER_SMALL, "true"]).returncode:
        pytest.skip("a process may have no file systems of its own here")
    repository = tmp_path / "repository"
    wide = make_model(
        [helper.make_node("Expand", ["x", "shape"], ["y"])],
        [("x", TensorProto.FLOAT, (1,))],
        [("y", TensorProto.FLOAT, ("n",))],
        [("shape", np.array([10_000_000]))],
    )
    write_entry(repository, "wide", wide)
    write_entry(repository, "good", doubled())
    with serve(tmp_path, [repository], under=UNDER_SMALL) as served:
        tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}
        with pytest.raises(AssertionError, match="expected a single response, got 0"):
            served.post("models/wide/infer", {"inputs": [tensor]})
        assert "a response could not be sent: Failed to increase" in served.log_text
        assert served.ask("good", 1) == [2.0] * 4
