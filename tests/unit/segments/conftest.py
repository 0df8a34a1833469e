"""What tests of segments share."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from brisk.segments.model import cutting
from brisk.segments.prepared import manifest, preparation, trial
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
def shares_whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To give the weights of a network of microseconds takes a part of its time. Packed weights,
    which are measured to gain or not, are multiplied in another order.
    """
    monkeypatch.setattr(trial, "MOST_LOST", math.inf)
    monkeypatch.setattr(preparation, "LEAST_SPEED", 0.0)
    monkeypatch.setattr(manifest, "LEAST_GAIN", 99.0)
    monkeypatch.setattr(manifest, "LEAST_BATCH_GAIN", 99.0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return chain(tmp_path / "model.onnx")
