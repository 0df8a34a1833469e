"""Fixtures of several folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def threads_restored() -> Iterator[None]:
    """torch's number of threads, which the test may change, is as before behind it."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
