"""Fixtures of the tests of publishing."""

from __future__ import annotations

import pytest

from brisk.segments.model import cutting


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small models, too."""
    monkeypatch.setattr(cutting, "SMALL_MODEL_NODES", 0)
    monkeypatch.setattr(cutting, "SMALL_MODEL_BYTES", 0)
    monkeypatch.setattr(cutting, "CALL_NS", 0)
    monkeypatch.setattr(cutting, "MOST_LOSS", 0.1)
    monkeypatch.setattr(cutting, "LONGEST_SEGMENT_NS", 300)
