"""What `brisk bench cold` makes of its samples."""

from __future__ import annotations

import pytest

from brisk_bench.cold.measure import EngineSamples
from brisk_bench.cold.results import all_checks, rows_of, speedup
from brisk_bench.cold.zygote import ColdSample


def _samples(firsts_s: list[float], warm_s: float = 0.1) -> EngineSamples:
    following = [warm_s * 1.05, warm_s, warm_s]
    samples = [ColdSample(first, first, following, [warm_s] * 3) for first in firsts_s]
    return EngineSamples(samples)


def test_a_speed_up_is_the_median_of_quotients_within_rounds() -> None:
    measured = {
        "onnxruntime": _samples([1.0, 2.0, 9.0]),
        "brisk": _samples([0.5, 0.5, 3.0]),
    }
    assert speedup(measured, "brisk", "onnxruntime") == pytest.approx(3.0)


def test_the_sooner_of_two_prepared_peers_counts() -> None:
    packed, plain = "onnxruntime prepared", "onnxruntime prepared without packing"
    measured = {
        "brisk": _samples([0.1, 0.1, 0.1]),
        packed: _samples([0.4, 0.5, 0.6]),
        plain: _samples([0.2, 0.3, 0.9]),
    }
    found = {row["engine"]: row for row in rows_of("process", "m", measured)}
    assert found["brisk"]["over_prepared_peer"] == pytest.approx(3.0)
    assert found[plain]["over_prepared_peer"] == 1.0
    assert "over_bare_peer" not in found["brisk"]


def test_rows_hold_milliseconds_and_the_base_has_speed_up_one() -> None:
    measured = {"onnxruntime": _samples([0.4, 0.6])}
    (row,) = rows_of("process", "m", measured)
    assert row["first_ms"] == pytest.approx(500.0)
    assert row["second_ms"] == pytest.approx(105.0)
    assert row["speedup"] == 1.0


def test_reading_from_the_disk_is_shown_as_a_ratio() -> None:
    samples = _samples([0.3, 0.3])
    samples.disk_s = [0.1, 0.1]
    (row,) = rows_of("disk", "m", {"brisk": samples})
    assert row["first_over_read"] == pytest.approx(3.0)


def test_inferences_are_compared_with_warm_ones_of_their_own_sample() -> None:
    (row,) = rows_of("process", "m", {"brisk": _samples([0.12, 0.2, 0.13])})
    assert row["first_over_warm"] == pytest.approx(1.3)
    assert (row["second_over_warm"], row["third_over_warm"]) == (1.05, 1.0)


def _served(engine: str, times_ms: list[float] | None) -> dict[str, object]:
    row = {"part": "served", "model": "m", "batch": 1, "engine": engine, "first_ms": 100.0}
    later = zip((2, 5, 10, 20), times_ms or (), strict=False)
    return {**row, "over_brisk": 5.0, **{f"answer_{answer}_ms": ms for answer, ms in later}}


def test_later_answers_have_aims_where_they_were_measured() -> None:
    peer = _served("onnxruntime", [200.0, 500.0, 1000.0, 2000.0])
    ours = _served("brisk", [50.0, 190.0, 530.0, 1360.0])
    later = [check for check in all_checks([ours, peer]) if "load to answer" in check.name]
    assert [check.value for check in later] == pytest.approx([1.0, 0.25, 0.38, 0.53, 0.68])
    assert [check.ok for check in later] == [False, True, True, False, True]
    before = [_served("brisk", None), _served("onnxruntime", None)]
    assert not [check for check in all_checks(before) if "load to answer" in check.name]
