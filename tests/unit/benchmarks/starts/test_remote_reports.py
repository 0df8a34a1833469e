"""What `brisk bench sourcing`, `streamed` and `chain` make of what they have measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from brisk_bench import chain, sourcing, streamed
from brisk_bench.cold.page_cache import cached_bytes
from brisk_bench.harness.command_line import UnusableArgumentError
from brisk_bench.harness.report import REASON, Report
from brisk_bench.sourcing import levels, travels, tuned


def report(rows: list[dict[str, Any]]) -> Report:
    return Report("r", {}, {}, rows, [])


def outcomes(made: Report) -> dict[str, tuple[Any, bool]]:
    return {check.name: (check.value, check.ok) for check in made.checks}


def level(first_s: float, **more: Any) -> list[dict[str, Any]]:
    return [{"first_s": first_s, "needed_bytes": 100_000_000, "bytes_per_s": 0.0, **more}]


def test_a_level_is_bound_by_its_bytes_and_by_what_memory_takes() -> None:
    far = {
        "took": "form",
        "sources": {"10.0.0.3:7700": 90, "http://10.0.0.1:80/manifest.json": 10},
    }
    found = {
        levels.PLAIN: level(0.2, cached=1),
        levels.MEMORY: level(0.21, cached=1),
        levels.DISK: level(0.7, cached=0, bytes_per_s=200e6),
        levels.PEER_MEMORY: level(1.9, **far, cached=1),
        levels.PEER_DISK: level(2.6, **far, cached=0, bytes_per_s=50e6),
        levels.FROM_REGISTRY: level(4.3, **far),
    }
    rows = {row["level"]: row for row in levels.rows("m", found, 190.0, 480.0)}
    assert "bound_s" not in rows[levels.PLAIN]
    assert rows[levels.MEMORY]["bound_s"] == pytest.approx(0.2)
    assert rows[levels.DISK]["bound_s"] == pytest.approx(0.5 + 0.21)
    assert rows[levels.PEER_MEMORY]["bound_s"] == pytest.approx(800 / 480 + 0.21)
    assert rows[levels.PEER_DISK]["bound_s"] == pytest.approx(2.0 + 0.21)
    assert rows[levels.FROM_REGISTRY]["bound_s"] == pytest.approx(800 / 190 + 0.21)
    assert rows[levels.PEER_MEMORY]["from_peer"] == pytest.approx(0.9)
    made = report(list(rows.values()))
    levels.add_checks(made)
    assert len(made.checks) == 6
    failing = [name for name, (_, ok) in outcomes(made).items() if not ok]
    assert failing == [
        "m from peer's disk: first answer over its bound",
        "m: from the registry at 200 Mbit/s over memory",
    ]


def test_what_the_courier_chooses_is_compared_with_the_form() -> None:
    start = {"last_s": 1.0, "needed_bytes": 10, "took": "weights"}
    found = {
        travels.CHOSEN: [{**start, "first_s": 2.8}],
        travels.FORM: [{**start, "first_s": 4.0, "took": "form"}],
        travels.WEIGHTS: [{**start, "first_s": 2.9}],
    }
    made = report(list(travels.rows("m", found, 170_000_000, 100_000_000)))
    travels.add_checks(made)
    assert outcomes(made) == {"m: what the courier chooses (weights) over the form": (0.7, True)}
    assert made.rows[0]["form_mb"] == 170


def test_a_fine_tune_is_judged_by_what_is_left_behind_its_last_byte() -> None:
    starts = [
        {"first_s": 2.0 + late, "last_s": 2.0, "warm_s": 0.1, "needed_bytes": 1}
        for late in (0.005, 0.02, 0.015)
    ]
    made = report([tuned.row("m", starts)])
    tuned.add_checks(made)
    ((value, ok),) = outcomes(made).values()
    assert value == pytest.approx(0.15)
    assert not ok


def test_a_streamed_model_is_judged_by_what_it_gains_and_one_without_rows_is_not() -> None:
    def row(model: str, side: str, first_s: float) -> dict[str, Any]:
        rest = {"again_s": 0.2, "late": 0.1, "mbit_s": 500.0}
        return {"model": model, "side": side, "first_s": first_s, **rest}

    rows = [
        row("resnet50", streamed.STREAMED, 2.0),
        row("resnet50", streamed.DOWNLOADED, 2.2),
        row("other", streamed.STREAMED, 2.0),
        row("other", streamed.DOWNLOADED, 2.2),
        {"model": "broken", REASON: "why"},
    ]
    made = report(rows)
    streamed.add_checks(made)
    gains = {name: ok for name, (_, ok) in outcomes(made).items() if "downloading" in name}
    assert gains == {
        "resnet50: downloading first, over this": False,
        "other: downloading first, over this": True,
    }


def test_a_chain_is_judged_for_each_number_of_receivers_and_unicast_for_the_most(
    tmp_path: Path,
) -> None:
    def row(receivers: int, side: str, seconds: float) -> dict[str, Any]:
        named = {"receivers": receivers, "side": side, "seconds": seconds}
        return {**named, "spread_s": 0.0, "least_s": 1.0, "over": seconds}

    made = report([row(1, "chain", 1.02), row(1, "unicast", 1.0), row(4, "chain", 1.2)])
    made.rows.append(row(4, "unicast", 4.2))
    chain.add_checks(made)
    assert [(check.value, check.ok) for check in made.checks] == [
        (1.02, True),
        (1.2, False),
        (3.5, True),
    ]
    pytest.importorskip("matplotlib")
    assert chain.plot_receivers(made, tmp_path).stat().st_size


def test_numbers_of_receivers_are_those_that_there_are() -> None:
    assert chain.chosen_counts((), quick=False) == [1, 2, 3, 4]
    assert chain.chosen_counts((), quick=True) == [4]
    assert chain.chosen_counts(["3", "1"], quick=True) == [1, 3]
    with pytest.raises(UnusableArgumentError, match="'5' receivers; expected 1, 2, 3, 4"):
        chain.chosen_counts(["5"], quick=False)


def test_parts_and_sides_are_known_before_hosts_are_made() -> None:
    with pytest.raises(UnusableArgumentError, match="no part 'level'"):
        sourcing.run(parts=["level"])
    with pytest.raises(UnusableArgumentError, match="no side 'stream'"):
        streamed.run(sides=["stream"])


def test_bytes_in_the_page_cache_are_counted(tmp_path: Path) -> None:
    empty, file = tmp_path / "empty", tmp_path / "file"
    empty.touch()
    file.write_bytes(os.urandom(1_000_001))
    file.read_bytes()
    assert cached_bytes([empty, file]) == 1_000_001
