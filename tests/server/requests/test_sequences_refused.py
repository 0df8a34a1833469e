"""Entries of sequences that cannot be served are refused at load, each with its reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tritonclient import http
from tritonclient.utils import InferenceServerException

from support.server.entries import write_entry
from support.server.running import StartServer
from support.server.sequence_clients import accumulator, direct, oldest, state, tensor

pytestmark = pytest.mark.server

SUM = state("sum", "next", "FP32", "2", "dims: [ 2 ] zero_data: true")
BASE = (
    'backend: "brisk" max_batch_size: 4\n'
    f"input [ {tensor('x', 'FP32', '2')} ] output [ {tensor('y', 'FP32', '2')} ]\n"
)
TEXT = """
control_input { name: "WHO" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
"""
FILE = state("sum", "next", "FP32", "2", 'dims: [ 2 ] data_file: "../../good/initial_state/sum"')
REASONS = {
    "iterative": (oldest(SUM, "iterative_sequence: true"), "iterative_sequence is not served"),
    "text": (oldest(SUM, TEXT), "CORRID of TYPE_STRING in 'WHO'"),
    "misnamed": (
        direct(SUM.replace('"next"', '"nxt"')),
        "output_name 'nxt' is no output of the model; it has y, next",
    ),
    "outside": (direct(FILE), "leads outside the model's folder"),
}


def test_what_is_not_served_is_refused_at_load(tmp_path: Path, start_server: StartServer) -> None:
    repository = tmp_path / "repository"
    for name, (batching, _) in REASONS.items():
        entry = write_entry(repository, name, accumulator(), BASE + batching)
        (entry / "initial_state").mkdir()
    good = write_entry(repository, "good", accumulator(), BASE + oldest(SUM))
    (good / "initial_state").mkdir()
    (good / "initial_state" / "sum").write_bytes(bytes(8))
    server = start_server(
        repository,
        ["--model-control-mode=explicit", "--load-model=good"],
    )
    with http.InferenceServerClient(server.endpoints.http) as client:
        for name, (_, reason) in REASONS.items():
            with pytest.raises(InferenceServerException, match=re.escape(reason)):
                client.load_model(name)
        assert client.is_model_ready("good")
