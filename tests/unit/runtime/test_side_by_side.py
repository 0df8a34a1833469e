"""Runs of two models side by side in one worker: who gets a companion, and what may stop it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.frontend.connection import Connection
from brisk.wire.place import RuntimePlace
from unit.runtime.runtime_process import (
    SLOW_INPUT,
    describe,
    end_processes,
    opened,
    slow_model,
    submit,
)
from waiting import wait_until

STEPS = {"long": 160, "brief": 20, "other": 20}
SETTLED_RUNS = 3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    return {name: slow_model(directory / f"{name}.onnx", steps) for name, steps in STEPS.items()}


@pytest.fixture(scope="module")
def place(models: dict[str, Path]) -> Iterator[RuntimePlace]:
    parent = Path(tempfile.mkdtemp(prefix="brisk-"))
    place = RuntimePlace(parent / "runtime", "cpu")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BRISK_THREADS", "2")
        with opened(place, describe(models["long"])):
            yield place
    end_processes(place)
    shutil.rmtree(parent)


@pytest.fixture
def connections(place: RuntimePlace, models: dict[str, Path]) -> Iterator[dict[str, Connection]]:
    """To models whose kernels are settled, and whose runs' times are known."""
    with contextlib.ExitStack() as stack:
        found = {
            name: stack.enter_context(opened(place, describe(path)))
            for name, path in models.items()
        }
        for connection in found.values():
            for _ in range(SETTLED_RUNS):
                submit(connection, SLOW_INPUT)[1].output()
        wait_until(lambda: beside(found), "a run beside another one")
        yield found


def beside(connections: dict[str, Connection], job_class: str = "normal") -> bool:
    """Whether a brief run that comes behind a long one is answered before it."""
    long = submit(connections["long"], SLOW_INPUT, job_class)[1]
    brief = submit(connections["brief"], SLOW_INPUT, job_class)[1]
    brief.output()
    came_first = not long.has_come
    long.output()
    return came_first


def test_x(connections: dict[str, Connection]) -> None:
    assert beside(connections)
