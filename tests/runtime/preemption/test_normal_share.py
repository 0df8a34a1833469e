"""The minimum share of normal work beside a flood of real-time requests, in a real runtime."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from brisk.scheduling.times import PATIENCE_NS
from brisk.stub.runtime_client.client import RuntimeClient
from support.runtime.runtime_process import (
    SLOW_INPUT,
    Answer,
    describe,
    opened,
    own_place,
    slow_model,
    submit,
)

pytestmark = pytest.mark.timing

IN_FLIGHT = 3
"""Of the flood: there is always one that waits."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One that is asked in real time, and another one's."""
    directory = tmp_path_factory.mktemp("models")
    urgent = slow_model(directory / "urgent.onnx", steps=20)
    return urgent, slow_model(directory / "normal.onnx", steps=5)


@contextlib.contextmanager
def connected(
    models: tuple[Path, Path], share: str | None
) -> Iterator[tuple[RuntimeClient, RuntimeClient]]:
    """To both, in a runtime of their own."""
    with pytest.MonkeyPatch.context() as environment:
        if share is not None:
            environment.setenv("BRISK_NORMAL_SHARE", share)
        with (
            own_place() as place,
            opened(place, describe(models[0])) as urgent,
            opened(place, describe(models[1])) as normal,
        ):
            for connection in (urgent, normal):
                for _ in range(3):
                    submit(connection, SLOW_INPUT)[1].output()
            yield urgent, normal


class Flood:
    """Real-time requests of which some always wait, as a client sends who wants to go first."""

    def __init__(self, connection: RuntimeClient) -> None:
        self._connection = connection
        self._sent = [self._submit() for _ in range(IN_FLIGHT)]
        self.answers = 0

    def _submit(self) -> tuple[int, Answer]:
        return submit(self._connection, SLOW_INPUT, "realtime")

    def step(self) -> None:
        """Until the next answer, which is replaced by a request."""
        self._sent.pop(0)[1].output()
        self.answers += 1
        self._sent.append(self._submit())

    def end(self) -> None:
        for _, answer in self._sent:
            answer.output()


def answers_beside_a_flood(
    urgent: RuntimeClient, normal: RuntimeClient, seconds: float
) -> tuple[int, int]:
    """How many requests of the flood and of a normal client are answered; all are right."""
    undisturbed = submit(normal, SLOW_INPUT)[1].output()
    flood, answers = Flood(urgent), 0
    flood.step()
    end_s = time.monotonic() + seconds
    _, asked = submit(normal, SLOW_INPUT)
    while time.monotonic() < end_s:
        flood.step()
        if asked.has_come:
            np.testing.assert_array_equal(asked.output(), undisturbed)
            answers += 1
            _, asked = submit(normal, SLOW_INPUT)
    flood.end()
    np.testing.assert_array_equal(asked.output(), undisturbed)
    return flood.answers, answers


def test_a_flood_of_real_time_requests_leaves_the_normal_ones_of_another_model_their_share(
    models: tuple[Path, Path],
) -> None:
    """A run of the flood computes four times as much as a normal one. Of the time after the
    patience, a share of 0.05 is a normal answer for five of the flood; half of these must come: a
    request that comes when none waited gets its turn only after the next run.
    """
    with connected(models, None) as (urgent, normal):
        seconds = PATIENCE_NS / 1e9 + 4.0
        flooding, answers = answers_beside_a_flood(urgent, normal, seconds)
    assert flooding > 10
    beside = flooding * 4.0 / seconds
    assert answers >= 0.5 * beside / 5, f"{answers} beside {flooding}"
    assert answers <= 1 + flooding / 4, "the flood goes first all the same"


def test_without_a_share_the_flood_starves_them(models: tuple[Path, Path]) -> None:
    """What the share is there for: the test above would else prove nothing."""
    with connected(models, "0") as (urgent, normal):
        flooding, answers = answers_beside_a_flood(urgent, normal, PATIENCE_NS / 1e9 + 2.0)
    assert flooding > 10
    assert answers == 0
