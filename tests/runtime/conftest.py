"""Fixtures around ``runtime_process``: a place for a test's own runtime, and small models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.protocol.runtime_paths import RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from support.runtime.runtime_process import (
    describe,
    opened,
    own_place,
    quick_model,
    slow_model,
)

SETTINGS = {
    "BRISK_IDLE_EXIT_S": "1",
    "BRISK_THREADS": "1",
    "BRISK_ARTEFACTS": "off",
    "BRISK_SAMPLED_SHARE": "0",
}
"""The same for runtimes of single tests and for those of files: a runtime compares them."""


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def place() -> Iterator[RuntimePaths]:
    with own_place() as own:
        yield own


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimePaths]:
    """The place of a runtime that serves all tests of a file."""
    model = describe(quick_model(tmp_path_factory.mktemp("shared") / "shared.onnx"))
    with pytest.MonkeyPatch.context() as environment:
        for name, value in SETTINGS.items():
            environment.setenv(name, value)
        with own_place() as shared, opened(shared, model):
            yield shared


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    return quick_model(tmp_path / "quick.onnx")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return slow_model(tmp_path / "slow.onnx")


@pytest.fixture
def logged() -> list[str]:
    """What ``connection`` has logged."""
    return []


@pytest.fixture
def connection(
    shared_place: RuntimePaths, quick: Path, logged: list[str]
) -> Iterator[RuntimeClient]:
    """Of a quick model, to the runtime of the file."""
    made = RuntimeClient(shared_place, describe(quick), lambda level, text: logged.append(text))
    made.open()
    yield made
    made.close()
