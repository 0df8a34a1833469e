"""The distance gate's directions, where its features are too many to decompose exactly."""

from __future__ import annotations

import pytest
import torch

from brisk.exits.heads.distance_gate import EXACT_FEATURES, RANK, DistanceGate

FEATURES = EXACT_FEATURES + 88


def traffic(seed: int, mixing: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of 100 sources of falling strength, and noise; all of one class."""
    torch.manual_seed(seed)
    strength = 0.97 ** torch.arange(100)
    rows = (torch.randn(900, 100) * strength) @ mixing + torch.randn(900, FEATURES) * 0.1
    return rows, torch.zeros(900, dtype=torch.int64)


def explained(gate: DistanceGate, rows: torch.Tensor) -> float:
    """The share of variance in the gate's subspace, over that in the best one of its rank."""
    standard = (rows - gate.mean) * gate.scale
    best = torch.linalg.svdvals(standard)[:RANK].square().sum()
    return float((standard @ gate.basis).square().sum() / best)


@pytest.mark.parametrize("change", [0.0, 0.5, 1.0])
def test_directions_are_found_again_from_those_of_earlier_data(change: float) -> None:
    torch.manual_seed(9)
    before, after = torch.randn(2, 100, FEATURES)
    gate = DistanceGate(FEATURES, 2)
    first, classes = traffic(0, before)
    gate.fit(first, classes)
    assert explained(gate, first) > 0.99
    changed, classes = traffic(1, (1 - change) * before + change * after)
    stale = DistanceGate(FEATURES, 2)
    stale.load_state_dict(gate.state_dict())
    gate.fit(changed, classes)
    assert explained(gate, changed) > 0.95
    if change == 1.0:
        assert explained(stale, changed) < 0.5, "the change is one"
