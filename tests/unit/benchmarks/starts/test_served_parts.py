"""What a first answer through Triton is made of, from spans and stamps written down."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from brisk.protocol.records import Span
from brisk.runtime.models import loader
from brisk.runtime.requests import table
from brisk_bench.cold import served_parts
from brisk_bench.cold.served_parts import (
    Parts,
    UnknownPartsError,
    noting,
    part_columns,
    parts_of_brisk,
    parts_of_python,
    read_stamps,
)

MS = 1_000_000
FILE = "/somewhere/m/1/model.onnx"


def span(lane: str, name: str, begin_ms: int, end_ms: int, request: str = FILE) -> Span:
    return Span(lane, name, begin_ms * MS, end_ms * MS, request, "")


def request(begin_ms: int, end_ms: int, model: str = "m") -> Span:
    return span("requests", f"{model} 1, normal", begin_ms, end_ms, "request 1 of process 9")


LOAD = [span("load lane", "load model.onnx", 30, 40), span("parse", "parse", 31, 38)]


def test_the_parts_of_brisk_lie_one_behind_the_other() -> None:
    spans = [
        *LOAD,
        span("load-0", "create 0", 40, 48),
        span("issue", "wait 0", 46, 48),
        span("issue", "create 1", 50, 55),
        request(45, 95),
    ]
    found = parts_of_brisk(spans, "m", "artefact", 10 * MS, 110 * MS)
    assert found == Parts(
        stub_s=pytest.approx(0.040),
        parse_s=pytest.approx(0.007),
        load_s=pytest.approx(0.003 + 0.002 + 0.005),
        run_s=pytest.approx(0.050 - 0.007),
        beside_s=pytest.approx(0.008),
    )
    parts = (found.stub_s, found.parse_s or 0, found.load_s, found.run_s)
    assert sum(parts) == pytest.approx(0.1), "from the load call to the first answer"


def test_from_the_models_own_file_sessions_are_made_while_it_is_read() -> None:
    found = parts_of_brisk([*LOAD, request(45, 95)], "m", "model", 0, 110 * MS)
    assert (found.parse_s, found.load_s) == (None, 0.01)
    assert part_columns([found])["parse_ms"] is None


def test_only_the_first_request_of_that_model_counts() -> None:
    others = [
        span("load lane", "load model.onnx", 1, 2, "/somewhere/resident/1/model.onnx"),
        span("issue", "create 0", 60, 61, "/somewhere/resident/1/model.onnx"),
        span("issue", "create 0", 100, 150),
        request(46, 47, "resident"),
        request(100, 190),
    ]
    found = parts_of_brisk([*others, *LOAD, request(45, 95)], "m", "model", 0, 99 * MS)
    assert found.run_s == pytest.approx(0.05)


@pytest.mark.parametrize("spans", [LOAD, [request(45, 95)]])
def test_what_was_not_recorded_is_not_guessed(spans: list[Span]) -> None:
    with pytest.raises(UnknownPartsError, match="recorded nothing of 'm' in"):
        parts_of_brisk(spans, "m", "artefact", 0, 110 * MS)


def test_parts_longer_than_the_whole_are_refused() -> None:
    with pytest.raises(UnknownPartsError, match="to the first answer"):
        parts_of_brisk([*LOAD, request(45, 95)], "m", "artefact", 0, 50 * MS)


def test_lanes_are_called_as_the_worker_calls_them() -> None:
    assert (served_parts.LOADS, served_parts.REQUESTS) == (loader.LOADS, table.REQUESTS)


def test_columns_are_medians_in_milliseconds() -> None:
    rounds = [Parts(0.04, parse_s, 0.02, 0.06) for parse_s in (0.001, 0.002, 0.009)]
    assert part_columns(rounds) == {
        "stub_ms": 40.0,
        "parse_ms": 2.0,
        "load_ms": 20.0,
        "run_ms": 60.0,
        "beside_ms": 0.0,
    }


def test_a_python_model_notes_its_load_and_its_first_request_only(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        return [self.args, *requests]
"""
    file = tmp_path / "stamps.json"
    module = types.ModuleType("noting_model")
    exec(noting(source).format(stamps=str(file)), vars(module))  # as Triton's stub runs it
    model = module.TritonPythonModel()
    model.initialize("given")
    assert model.execute(["asked"]) == ["given", "asked"]
    first = dict(model.stamps)
    model.execute([])
    model.finalize()
    stamps = read_stamps(file)
    assert stamps == first == json.loads(file.read_text())
    begin_ns, end_ns = stamps["initialize"][0] - 5 * MS, stamps["execute"][1] + 5 * MS
    found = parts_of_python(stamps, begin_ns, end_ns)
    assert found.stub_s >= 0.01
    assert found.parse_s is None
    assert found.stub_s + found.load_s + found.run_s == pytest.approx((end_ns - begin_ns) / 1e9)
    assert "noting_model" not in sys.modules


def test_a_model_that_told_nothing_has_no_parts(tmp_path: Path) -> None:
    with pytest.raises(UnknownPartsError, match="told no times"):
        read_stamps(tmp_path / "stamps.json")
    with pytest.raises(UnknownPartsError, match="noted no 'execute'"):
        parts_of_python({"initialize": [1, 2]}, 0, 9)
