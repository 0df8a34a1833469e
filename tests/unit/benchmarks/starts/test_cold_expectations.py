"""What `brisk bench cold` expects, on rows written down."""

from __future__ import annotations

from typing import Any

import pytest

from brisk_bench.cold.results import all_checks


def _row(model: str, engine: str, first_ms: float, **more: Any) -> dict[str, Any]:
    row = {"part": "process", "model": model, "batch": 1, "engine": engine, "first_ms": first_ms}
    return {**row, **more}


def _outcome(rows: list[dict[str, Any]]) -> dict[str, tuple[float, bool]]:
    return {check.name: (check.value, check.ok) for check in all_checks(rows)}


def test_no_model_starts_later_than_with_onnx_runtime() -> None:
    rows = [
        _row("m", "brisk", 1.0, speedup=0.9, first_over_warm=1.0),
        _row("m", "brisk unprepared", 1.0, speedup=1.1),
    ]
    assert _outcome(rows) == {
        "m: brisk, first inference over warm": (1.0, True),
        "m: brisk, speed-up over onnxruntime": (0.9, False),
        "m: brisk unprepared, speed-up over onnxruntime": (1.1, True),
    }


@pytest.mark.parametrize(("over_warm", "ok"), [(1.2, True), (1.3, False)])
def test_prepared_starts_are_expected_to_be_nearly_as_fast_as_warm_inferences(
    over_warm: float, ok: bool
) -> None:
    rows = [
        _row(name, "brisk", 1.0, speedup=speedup, first_over_warm=over_warm)
        for name, speedup in (("m", 2.0), ("n", 8.0))
    ]
    name = "2 models: brisk, geometric mean of speed-ups over onnxruntime"
    assert _outcome(rows)[name] == (4.0, ok)


@pytest.mark.parametrize(("speedup", "ok"), [(3.0, True), (2.9, False)])
def test_starts_from_the_bare_file_are_expected_to_be_three_times_as_fast(
    speedup: float, ok: bool
) -> None:
    rows = [_row(name, "brisk unprepared", 1.0, speedup=speedup) for name in "mn"]
    name = "2 models: brisk unprepared, geometric mean of speed-ups over onnxruntime"
    assert _outcome(rows)[name] == (pytest.approx(speedup), ok)


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


def test_served_models_and_wrong_answers_are_checked() -> None:
    torch = {**_row("m", "torch", 9.0), "part": "served", "over_brisk": 7.0}
    wrong = _row("m", "brisk", 1.0, agrees=False)
    found = [check.ok for check in all_checks([torch, wrong])]
    assert found == [False, False]
