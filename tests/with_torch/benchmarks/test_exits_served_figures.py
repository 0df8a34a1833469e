"""The report of `brisk bench exits_served`: rows and checks follow from what was timed."""

from __future__ import annotations

import pytest

from brisk_bench.exits.served import SIDES, ServedSide, checks_of, rows_of


def sides(with_caches_ms: float, agreeing: int = 98) -> dict[str, ServedSide]:
    times = {"without caches": 10.0, "with caches": with_caches_ms, "opted out": 11.0}
    return {
        name: ServedSide(
            [times[name] / 1e3] * 1000, 10 * agreeing if name == "with caches" else 1000, 1000
        )
        for name in SIDES
    }


def test_speed_ups_are_over_the_model_without_caches() -> None:
    rows = {row["side"]: row for row in rows_of(sides(4.0), 1, 0.8)}
    assert rows["with caches"]["speed_up"] == pytest.approx(2.5)
    assert rows["opted out"]["speed_up"] == pytest.approx(10 / 11)
    assert rows["with caches"]["early"] == 0.8
    assert rows["opted out"]["early"] == rows["without caches"]["early"] == 0


@pytest.mark.parametrize(
    ("with_caches_ms", "agreeing", "failing"),
    [
        (4.0, 98, set()),
        (4.0, 96, {"agreement with the model"}),
        (12.0, 98, {"mean speed-up", "p99 over the bare model's"}),
    ],
)
def test_checks_fail_where_a_figure_is_not_what_was_promised(
    with_caches_ms: float, agreeing: int, failing: set[str]
) -> None:
    checks = checks_of(sides(with_caches_ms, agreeing), 0.97)
    assert {check.name for check in checks if not check.ok} == failing
