"""``brisk size``: what a repository takes, measured with a server of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from support.server.entries import doubled, make_model, write_entry

pytestmark = [pytest.mark.timing, pytest.mark.beside]

MIB = 2**20


def size(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "brisk.cli", "size", str(folder / "repository"), *arguments]
    environment = {
        **os.environ,
        "BRISK_CACHE_DIR": str(folder / "cache"),
        "BRISK_ARTEFACTS": "off",
    }
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def heavy() -> bytes:
    """32 MiB of weights."""
    return make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, ("rows", "width"))],
        [("y", TensorProto.FLOAT, ("rows", 2048))],
        [("w", np.random.default_rng(0).standard_normal((4096, 2048)).astype(np.float32))],
    )


def test_each_entry_is_loaded_asked_and_told_and_what_is_not_says_why(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_entry(repository, "broken", b"no model", 'backend: "brisk"')
    write_entry(repository, "doubled", doubled(), 'backend: "brisk"')
    write_entry(repository, "heavy", heavy(), 'backend: "brisk"')
    text = [("s", TensorProto.STRING, ("rows",))], [("t", TensorProto.STRING, ("rows",))]
    words = make_model([helper.make_node("Identity", ["s"], ["t"])], *text)
    write_entry(repository, "words", words, 'backend: "brisk"')
    rows = make_model(
        [helper.make_node("Gather", ["table", "row"], ["y"])],
        [("row", TensorProto.INT64, ("rows",))],
        [("y", TensorProto.FLOAT, ("rows", 2))],
        [("table", np.zeros((1, 2), np.float32))],
    )
    write_entry(repository, "table", rows, 'backend: "brisk"')  # has a row 0, and no row 1
    np.savez(tmp_path / "rows.npz", row=np.zeros((3, 1), np.int64))
    given = f"table={tmp_path / 'rows.npz'}"
    done = size(tmp_path, "--seconds", "0.2", "--shape", "x=1,4096", "--data", given, "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    broken, small, large, table, strings = found["entries"]
    assert (table["problem"], table["p50_ms"] > 0) == ("", True), "the file's row, no made-up one"
    assert not broken["is_loaded"]
    assert "model.onnx" in broken["problem"]
    # 4096 columns are not what "doubled" takes: it is there, and its memory is told.
    assert (small["is_loaded"], small["p50_ms"]) == (True, None)
    assert "shape" in small["problem"]
    assert large["is_loaded"]
    assert not large["problem"]
    assert (strings["problem"], strings["p50_ms"] > 0) == ("", True)
    assert 0 < large["p50_ms"] <= large["p99_ms"]
    assert large["processor_ms"] > 0
    assert 30 < large["mib"] < 200, "its weights, once or twice"
    assert found["server_mib"] > 10


def test_what_is_found_is_a_table_and_a_sum_and_a_shape_that_fits_nothing_is_named(
    tmp_path: Path,
) -> None:
    write_entry(tmp_path / "repository", "doubled", doubled(), 'backend: "brisk"')
    done = size(tmp_path, "--seconds", "0.2", "--shape", "nope=1,2")
    assert done.returncode == 1
    assert done.stderr == "error: --shape: no loaded model has an input 'nope'\n"
    header, line, total = done.stdout.splitlines()
    assert header.split()[0] == "entry"
    assert line.split()[0] == "doubled"
    assert len(line.split()) == 6
    assert "with 1 of 1 entries" in total
