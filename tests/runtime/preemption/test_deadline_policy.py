"""The policy ``deadline`` in a real runtime: who interrupts whom, and what runs beside whom."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from brisk.stub.runtime_client.client import RuntimeClient
from support.runtime.runtime_process import (
    SLOW_INPUT,
    describe,
    opened,
    own_place,
    quick_model,
    slow_model,
    submit,
)

pytestmark = pytest.mark.timing

ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.fixture(scope="module")
def connections(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[RuntimeClient, RuntimeClient]]:
    """To a slow model and to a quick one, which both workers have loaded."""
    directory = tmp_path_factory.mktemp("models")
    models = slow_model(directory / "slow.onnx", steps=100), quick_model(directory / "quick.onnx")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {"THREADS": "1", "POLICY": "deadline", "ARTEFACTS": "off"}.items():
            environment.setenv(f"BRISK_{name}", value)
        with (
            own_place() as place,
            opened(place, describe(models[0])) as slow,
            opened(place, describe(models[1])) as quick,
        ):
            for _ in range(2):  # then it is known how long a run takes: the first may be a start's
                submit(slow, SLOW_INPUT, "realtime")[1].output()
            submit(quick, ROWS, "besteffort")[1].output()
            yield slow, quick


def within(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def test_of_a_class_the_earlier_deadline_interrupts_and_no_deadline_waits(
    connections: tuple[RuntimeClient, RuntimeClient],
) -> None:
    slow, quick = connections
    undisturbed = submit(slow, SLOW_INPUT)[1].output()
    late = submit(slow, SLOW_INPUT, "normal", within(60))[1]
    patient = submit(quick, ROWS)[1]
    early = submit(quick, ROWS, "normal", within(30))[1]
    np.testing.assert_array_equal(early.output(), -ROWS)
    assert not late.has_come, "it was interrupted"
    assert not patient.has_come, "it came before, but has no deadline"
    np.testing.assert_array_equal(late.output(), undisturbed)
    np.testing.assert_array_equal(patient.output(), -ROWS)


def test_best_effort_work_runs_beside_a_real_time_run_that_has_time_to_spare(
    connections: tuple[RuntimeClient, RuntimeClient],
) -> None:
    """Three times at most: a busy machine leaves best-effort work nothing for as long as a run."""
    slow, quick = connections
    for _ in range(3):
        urgent = submit(slow, SLOW_INPUT, "realtime", within(60))[1]
        lazy = submit(quick, ROWS, "besteffort")[1]
        np.testing.assert_array_equal(lazy.output(), -ROWS)
        urgent.output()
        if lazy.ended_ns < urgent.ended_ns:
            return
    pytest.fail("each time it ended behind the real-time run")
