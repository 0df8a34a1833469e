"""What tests of segments share."""

from __future__ import annotations

from pathlib import Path

import pytest

from brisk.segments.model import cutting
from support.models.segment_models import chain


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small models, too."""
    monkeypatch.setattr(cutting, "SMALL_MODEL_NODES", 0)
    monkeypatch.setattr(cutting, "SMALL_MODEL_BYTES", 0)
    monkeypatch.setattr(cutting, "CALL_NS", 0)
    monkeypatch.setattr(cutting, "MOST_LOSS", 0.1)
    monkeypatch.setattr(cutting, "LONGEST_SEGMENT_NS", 15_000)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return chain(tmp_path / "model.onnx")
