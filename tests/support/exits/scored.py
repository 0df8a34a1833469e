"""Inputs through exits that find all of them in distribution."""

from __future__ import annotations

import numpy as np

from brisk.exits.guarantee.calibration import Scored


def scored_near(scores: np.ndarray, right: np.ndarray) -> Scored:
    """Return inputs of which all are near the training data."""
    return Scored(scores, right, np.ones_like(right))
