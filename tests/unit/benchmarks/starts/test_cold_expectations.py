"""What `brisk bench cold` expects, on rows written down; pieces of a report put together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brisk_client.benchmarks import cold
from brisk_client.benchmarks.cold.benchmark import resume
from brisk_client.benchmarks.cold.models import SMOKE
from brisk_client.benchmarks.cold.results import all_checks, batch_rows
from brisk_client.benchmarks.harness.command_line import UnusableArgumentError
from brisk_client.report import Report, write_json

pytestmark = pytest.mark.timing


def _row(model: str, engine: str, first_ms: float, **more: Any) -> dict[str, Any]:
    row = {"part": "process", "model": model, "batch": 1, "engine": engine, "first_ms": first_ms}
    return {**row, **more}


def _outcome(rows: list[dict[str, Any]]) -> dict[str, tuple[float, bool]]:
    return {check.name: (check.value, check.ok) for check in all_checks(rows)}


def _report(rows: list[dict[str, Any]], processor: str = "p") -> Report:
    machine = {"processor": processor, "cores": 2, "threads": 2, "load_average": 0.1}
    return Report("cold", machine, {"torch": "1"}, rows, [])


@pytest.mark.parametrize(("engine", "limit"), [("brisk", 4.0), ("brisk unprepared", 2.0)], ids=str)
def test_speed_ups_are_expected_of_resnet_and_of_the_geometric_mean(
    engine: str, limit: float
) -> None:
    one = _row("resnet50", engine, 1.0, speedup=limit)
    assert _outcome([one]) == {f"resnet50: {engine}, speed-up over onnxruntime": (limit, True)}
    name = f"2 models: {engine}, geometric mean of speed-ups over onnxruntime"
    assert _outcome([one, _row("vit", engine, 1.0, speedup=limit / 4)])[name] == (limit / 2, False)


def test_each_kind_of_start_is_compared_with_onnx_runtimes_own_of_that_kind() -> None:
    rows = [
        _row("m", "brisk", 1.0, over_prepared_peer=0.5, over_bare_peer=9.0),
        _row("n", "brisk", 1.0, over_prepared_peer=2.0),
        _row("m", "brisk unprepared", 1.0, over_bare_peer=1.5, over_prepared_peer=0.1),
    ]
    assert _outcome(rows) == {
        "m: brisk over onnxruntime prepared": (0.5, False),
        "n: brisk over onnxruntime prepared": (2.0, True),
        "2 models: brisk over onnxruntime prepared, geometric mean": (1.0, True),
        "m: brisk unprepared over onnxruntime from the bare file": (1.5, True),
    }


def test_through_triton_the_sooner_prepared_peer_counts() -> None:
    rows = [
        {**_row("m", name, 1.0), "part": "served", "over_brisk": over}
        for name, over in (
            ("onnxruntime prepared", 0.9),
            ("onnxruntime prepared without packing", 1.4),
        )
    ]
    name = "m through Triton: Python backend with onnxruntime prepared over brisk"
    assert _outcome(rows) == {name: (0.9, False)}


def test_what_brisk_does_not_answer_fails_and_what_a_peer_does_not_is_only_told() -> None:
    rows = [
        {"part": "unmeasured", "model": "m", "batch": 1, "engine": engine, "reason": "it is so"}
        for engine in ("brisk", "openvino cached", "none")
    ]
    assert [(check.name, check.ok) for check in all_checks(rows)] == [
        ("m: brisk answers", False),
        ("m: none answers", False),
    ]


def test_each_late_inference_fails_its_own_check() -> None:
    row = _row("m", "brisk", 1.0, first_over_warm=1.2, second_over_warm=1.2, third_over_warm=1.0)
    assert [ok for _, ok in _outcome([row]).values()] == [True, False, True]


def test_a_disk_bound_start_takes_no_longer_than_reading_and_a_hot_start() -> None:
    name = "m: brisk from the disk over reading and then a hot start"
    for first_ms, ok in ((140.0, True), (160.0, False)):
        row = {**_row("m", "brisk", first_ms), "part": "disk", "read_ms": 100.0, "hot_ms": 50.0}
        assert _outcome([row])[name] == (pytest.approx(first_ms / 150, abs=1e-3), ok)


def test_other_load_may_slow_a_start_as_much_as_it_slows_the_peer() -> None:
    def rows(ours: float) -> list[dict[str, Any]]:
        more = {"part": "load", "load": "50% of each core"}
        return [{**_row("m", "brisk", 1.0), **more, "over_idle": ours},
                {**_row("m", "onnxruntime", 1.0), **more, "over_idle": 2.0}]  # fmt: skip

    name = "m: brisk beside 50% of each core, its slow-down over onnxruntime's"
    assert _outcome(rows(2.1))[name] == (1.05, True)
    assert _outcome(rows(3.0))[name] == (1.5, False)


def test_served_models_and_wrong_answers_are_checked() -> None:
    torch = {**_row("m", "torch", 9.0), "part": "served", "over_brisk": 7.0}
    wrong = _row("m", "brisk", 1.0, agrees=False)
    found = [check.ok for check in all_checks([torch, wrong])]
    assert found == [False, False]


def test_batches_are_geometric_means_over_models_and_warm_is_the_second_answer() -> None:
    rows = [
        {**_row(model, engine, first_ms), "batch": batch, "second_ms": 2.0}
        for batch in (1, 4)
        for model, base_ms in (("m", 8.0), ("n", 2.0))
        for engine, first_ms in (("onnxruntime", base_ms), ("brisk", 4.0))
    ]
    found = {(row["batch"], row["engine"]): row["over_onnxruntime"] for row in batch_rows(rows)}
    assert found == {(1, "brisk"): 1.0, (1, "warm"): 2.0, (4, "brisk"): 1.0, (4, "warm"): 2.0}
    assert batch_rows(rows[:4]) == []


def test_pieces_that_a_file_holds_are_not_measured_again(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "cold.json"

    def measured(*parts: str) -> list[str]:
        choice = cold.ColdOptions(
            models=[SMOKE],
            engines=["onnxruntime"],
            parts=parts,
            threads=1,
            rounds=1,
            folder=tmp_path / "kept",
            file=file,
            resumes=True,
        )
        cold.run(choice)
        return [row["part"] for row in json.loads(file.read_text())["rows"]]

    assert measured("process") == ["process"]
    kept = json.loads(file.read_text())["rows"]
    assert measured("process", "disk") == ["process", "disk"]
    assert json.loads(file.read_text())["rows"][:1] == kept


def test_pieces_of_another_machine_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "cold.json"
    write_json(_report([_row("m", "brisk", 1.0)]), file)
    with pytest.raises(UnusableArgumentError, match=r"another machine: .'processor': 'p'"):
        resume(_report([], processor="q"), file)
    with pytest.raises(UnusableArgumentError, match="--resume needs --json"):
        resume(_report([]), None)
