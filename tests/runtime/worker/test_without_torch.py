"""No process on the way of a CPU's requests imports torch, whatever they bring."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from brisk.errors import BriskError
from brisk.protocol.runtime_paths import RuntimePaths
from support.runtime.runtime_process import (
    SLOW_INPUT,
    describe,
    infer,
    opened,
    processes_of,
    quick_model,
    submit,
)

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def has_torch(process: int) -> bool:
    return "libtorch" in Path(f"/proc/{process}/maps").read_text()


def test_requests_of_every_outcome_and_class_leave_torch_alone(
    place: RuntimePaths, tmp_path: Path, slow: Path
) -> None:
    joined = describe(quick_model(tmp_path / "joined.onnx"), max_batch_size=8, batching=True)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with opened(place, joined) as quick, opened(place, describe(slow)) as long:
        for job_class in ("realtime", "normal", "besteffort"):
            answers = [submit(quick, ROWS, job_class)[1] for _ in range(8)]
            for answer in answers:
                np.testing.assert_array_equal(answer.output(), -ROWS)
        assert submit(quick, ROWS[:, :3])[1].wait().error is not None, "a shape that fits not"
        number, cancelled = submit(long, SLOW_INPUT)
        long.cancel(number)
        assert cancelled.wait().error is not None
        np.testing.assert_array_equal(infer(quick, -ROWS), ROWS)
        with pytest.raises(BriskError), opened(place, describe(broken)):
            pass
        late = submit(long, SLOW_INPUT, deadline_ns=time.monotonic_ns())[1]
        assert late.wait().error is not None
        found = processes_of(place)
        assert len(found) == 3, "the supervisor and a worker for each half"
        assert [process for process in found if has_torch(process)] == []
