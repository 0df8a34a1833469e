"""Reuse where it is quicker: what runs teach, and that models of a process share it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.execution.cold import Scheme, start
from brisk.execution.reuse import Rates, shared_reuse
from unit.execution.starting_models import CPU, small_network


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    shared_reuse.cache_clear()
    yield
    shared_reuse.cache_clear()


def test_nothing_is_favoured_before_all_three_rates_are_known() -> None:
    rates = Rates()
    for name in (
        "load_ns_per_byte",
        "run_ns_per_multiplication",
        "substitute_ns_per_multiplication",
    ):
        assert not rates.favours_substitute(1000, 1000)
        rates.learn(name, 1000, 1000)
    assert rates.favours_substitute(1000, 1000)  # running twice as long spares as much of loading


def test_a_substitute_is_favoured_exactly_where_it_costs_less_than_loading_and_running() -> None:
    rates = Rates(2.0, 1.0, 3.0)
    assert rates.favours_substitute(1001, 1000)
    assert not rates.favours_substitute(999, 1000)


def test_a_start_teaches_what_loading_and_running_cost(tmp_path: Path) -> None:
    example = small_network(tmp_path / "entry")
    start(example.path, Scheme.BRISK, example.inputs, CPU, 2).close()
    _, rates = shared_reuse()
    assert rates.load_ns_per_byte > 0
    assert rates.run_ns_per_multiplication > 0 or rates.substitute_ns_per_multiplication > 0


def test_what_one_model_taught_another_is_started_by(tmp_path: Path) -> None:
    example = small_network(tmp_path / "entry")
    first = start(example.path, Scheme.BRISK, example.inputs, CPU, 2)
    first.close()
    _, rates = shared_reuse()
    rates.load_ns_per_byte = 1e6  # from now on nothing is worth its layout
    rates.run_ns_per_multiplication = rates.substitute_ns_per_multiplication = 1.0
    other = small_network(tmp_path / "other")
    second = start(other.path, Scheme.BRISK, other.inputs, CPU, 2)
    other.check(second.outputs)
    second.settle()
    other.check(second.run(other.inputs))
    second.close()
    assert second.statistics.queries >= second.statistics.hits
    cache, _ = shared_reuse()
    assert cache.statistics().queries >= second.statistics.queries
