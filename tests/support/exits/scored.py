"""Inputs through exits that find none of them strange."""

from __future__ import annotations

import numpy as np

from brisk.exits.guarantee.calibration import Scored


def scored_near(scores: np.ndarray, right: np.ndarray) -> Scored:
    """All of them near the training data."""
    return Scored(scores, right, np.ones_like(right))
