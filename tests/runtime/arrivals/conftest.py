"""A registry, and a host with a cache and a courier of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from brisk.protocol.runtime_paths import RuntimePaths
from support.remote.entries import end_courier
from support.remote.registries import RegistryServer


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryServer]:
    (tmp_path / "published").mkdir()
    with closing(RegistryServer(tmp_path / "published")) as made:
        yield made


@pytest.fixture(autouse=True)
def _own_host(
    tmp_path: Path, place: RuntimePaths, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A cache and a courier of the test's own."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(place.base))
    monkeypatch.setenv("BRISK_ARTEFACTS", "use")
    yield
    end_courier()
