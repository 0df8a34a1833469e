"""Priority inheritance in a real runtime: what real-time work waits for is as urgent as that."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from brisk.protocol.runtime_paths import RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from support.models.long_loads import long_to_load
from support.runtime.runtime_process import describe, opened, submit

pytestmark = pytest.mark.timing

ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


def test_the_load_that_a_real_time_request_waits_for_goes_before_those_of_normal_models(
    place: RuntimePaths, tmp_path: Path
) -> None:
    """The foreground worker has the best-effort model only once such a request has come."""
    loaded_s: dict[str, float] = {}

    def load(connection: RuntimeClient, name: str) -> None:
        connection.open()
        loaded_s[name] = time.monotonic()

    lazy = describe(long_to_load(tmp_path / "lazy.onnx"), job_class="besteffort")
    with opened(place, lazy) as urgent:
        others = {}
        for number in range(4):
            path = long_to_load(tmp_path / f"normal{number}.onnx")
            others[path.stem] = RuntimeClient(place, describe(path), lambda level, text: None)
        threads = [threading.Thread(target=load, args=(c, n)) for n, c in others.items()]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        answer = submit(urgent, ROWS, "realtime")[1]
        answer.output()
        answered_s = time.monotonic()
        for thread in threads:
            thread.join()
        for connection in others.values():
            connection.close()
    assert answered_s < sorted(loaded_s.values())[-2], (
        "two loads were asked for before, and waited"
    )
