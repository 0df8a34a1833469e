"""Every node test case of the ONNX project becomes a program that holds together."""

from __future__ import annotations

from typing import Any

from brisk.errors import BriskError
from brisk.graph.reader import build_program
from support.models.graph_oracle import check_integrity

REFUSED: dict[str, str] = {}
"""Cases that are not read, each with its reason."""


def test_all_node_cases_are_read_but_those_listed(node_cases: list[Any]) -> None:
    assert len(node_cases) > 1000
    failed = {}
    for case in node_cases:
        try:
            check_integrity(build_program(case.model))
        except BriskError as error:
            failed[case.name] = str(error)
    assert failed.keys() == REFUSED.keys(), failed
