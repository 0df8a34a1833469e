"""Where the compiled library's helper threads run. Each test computes in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from brisk.compiled.library import absence, wait_until_settled
from brisk.solutions.compiled_layer import CompiledLayer, Fused, padded_bias, panels
from processors import processor

ROWS, WIDTH = 256, 512
RUNS = 100
ALL = sorted(os.sched_getaffinity(0))

needs_two_processors = pytest.mark.skipif(len(ALL) < 2, reason="there is one processor only")


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    if wait_until_settled() is None:
        pytest.skip(f"no compiled library: {absence()}")


def compute() -> list[dict[str, Any]]:
    """Products that helpers share, each checked; of each its threads and placement."""
    wait_until_settled()
    source = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    matrix = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1))
    weights = {"panels": panels(matrix), "bias": padded_bias(None, WIDTH)}
    layer = CompiledLayer(weights, WIDTH, WIDTH, Fused())
    torch.set_num_threads(1)
    expected = source @ matrix
    found = []
    for run in range(RUNS):
        threads = 1 + run // 10 % 2
        torch.set_num_threads(threads)
        before = processor()
        made = layer.compute_rows(source)
        torch.set_num_threads(1)  # of torch's own, which may have lost its processor, too
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-3)
        here = before if before == processor() else None
        found.append({"threads": threads, "here": here, "sets": _sets()})
    return found


def _sets() -> list[list[int]]:
    """The processors that each other thread of this process may use."""
    threads = [int(entry.name) for entry in Path("/proc/self/task").iterdir()]
    return [sorted(os.sched_getaffinity(one)) for one in threads if one != os.getpid()]


def computed(*prefix: str) -> list[dict[str, Any]]:
    """What ``compute`` found in a process of its own; ``prefix``: of its command line."""
    command = [*prefix, sys.executable, __file__]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=paths
    )
    assert ended.returncode == 0, ended.stderr
    rows: list[dict[str, Any]] = json.loads(ended.stdout)
    return rows


@needs_two_processors
def test_helpers_keep_off_the_callersprocessor() -> None:
    rows = [row for row in computed() if row["threads"] == 2 and row["here"] is not None]
    assert len(rows) > 20
    kept_off = [[one for one in ALL if one != row["here"]] in row["sets"] for row in rows]
    assert sum(kept_off) > 0.2 * len(rows)  # where others have its place, a helper comes back


@needs_two_processors
def test_with_one_processor_to_use_threads_share_it() -> None:
    for row in computed("taskset", "-c", str(ALL[0])):
        assert all(one == [ALL[0]] for one in row["sets"])


if __name__ == "__main__":
    print(json.dumps(compute()))
