"""ONNX's own node cases on a CUDA device: sizes on the CPU, everything else on the GPU."""

from __future__ import annotations

import pytest
import torch

from brisk.solutions.catalogue import default_catalogue
from brisk_client.benchmarks.conformance import collect_cases
from support.torch_cases import EXPECTED_SHARE, run_case

pytestmark = [
    pytest.mark.timing,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_at_least_97_percent_of_all_node_cases_pass_on_the_gpu() -> None:
    """TF32 stays off, as it is in torch by default for matrix products."""
    device = torch.device("cuda")
    outcomes = [run_case(case, default_catalogue(), device) for case in collect_cases()]
    failures = {outcome.name: outcome.failure for outcome in outcomes if not outcome.passed}
    assert 1 - len(failures) / len(outcomes) >= EXPECTED_SHARE, failures
