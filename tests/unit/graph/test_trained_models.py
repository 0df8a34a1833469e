"""Trained models of others, where the machine has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from brisk.graph.reader import read_program
from support.models.graph_models import random
from support.models.graph_oracle import evaluate, expected, operators

RESNET = Path(__file__).parents[4] / "shared" / "data" / "cifar10" / "resnet56.onnx"


@pytest.mark.skipif(not RESNET.exists(), reason="needs the trained CIFAR-10 ResNet-56")
def test_a_trained_resnet_keeps_its_answers_without_batch_normalization() -> None:
    program = read_program(RESNET)
    assert "BatchNormalization" not in operators(program)
    x = {"x": random(1, 3, 32, 32)}
    ours, theirs = evaluate(program, x)[0], expected(onnx.load(RESNET), x)[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
