"""NNV12's two-level heuristic, against brute force and by its own words."""

from __future__ import annotations

import itertools
import random

import pytest

from brisk.execution.selection import Candidate, schedule, select, undominated


def candidate(prepare: int, run: int, disk: int = 0, name: str = "k") -> Candidate:
    return Candidate(name, False, prepare, run, disk)


def test_a_kernel_that_is_no_faster_in_anything_is_filtered_out() -> None:
    winograd, product, slow = candidate(38, 3), candidate(2, 8), candidate(3, 18)
    assert undominated([winograd, slow, product]) == [product, winograd]


def test_of_equal_kernels_the_smaller_is_kept() -> None:
    assert undominated([candidate(1, 1, 9), candidate(1, 1, 2)]) == [candidate(1, 1, 2)]


def test_the_first_layer_is_prepared_by_the_executor() -> None:
    made = schedule([candidate(5, 10)] * 4, [1.0])
    assert 0 in made.executor
    assert sorted(itertools.chain(*made.lanes, made.executor)) == [0, 1, 2, 3]


def test_runs_hide_short_preparations_entirely() -> None:
    assert schedule([candidate(1, 10)] * 5, [1.0]).end_ns == 51


def test_an_executor_that_would_wait_takes_preparations_over() -> None:
    alone = schedule([candidate(10, 1)] * 6, [1.0])
    assert len(alone.executor) > 1
    assert alone.end_ns < 6 * 10 + 1


def test_a_faster_lane_gets_more() -> None:
    made = schedule([candidate(10, 10)] * 12, [1.0, 0.25])
    assert len(made.lanes[0]) > len(made.lanes[1])


def test_a_slow_transformation_is_avoided_where_nothing_hides_it() -> None:
    winograd, product = candidate(38, 3, name="w"), candidate(2, 8, name="p")
    chosen, _ = select([[winograd, product]] * 3, [1.0], 0)
    assert [each.solution for each in chosen] == ["p", "p", "p"]


def test_kept_weights_stay_within_the_disk_budget() -> None:
    kept, raw = candidate(1, 5, disk=100), candidate(9, 5, disk=10)
    chosen, _ = select([[kept, raw]] * 6, [1.0], 350)
    assert sum(each.disk_bytes for each in chosen) <= 350
    assert kept in chosen


def test_work_hidden_in_a_lane_counts_where_the_executor_could_use_its_processor() -> None:
    packed, plain = candidate(9, 10, name="packed"), candidate(1, 11, name="plain")
    hidden, _ = select([[packed, plain]] * 6, [1.0], 0)
    counted, made = select([[packed, plain]] * 6, [1.0], 0, alone=2.0)
    assert [each.solution for each in hidden].count("packed") > 3
    assert [each.solution for each in counted].count("plain") > 3
    assert made.end_ns == schedule(counted, [1.0], 2.0).end_ns


@pytest.mark.parametrize("seed", range(12))
def test_the_choice_is_near_the_best_of_all_combinations(seed: int) -> None:
    chance = random.Random(seed)
    layers = [
        [candidate(chance.randint(1, 40), chance.randint(1, 20)) for _ in range(3)]
        for _ in range(5)
    ]
    chosen, made = select(layers, [1.0], 0)
    best = min(schedule(list(one), [1.0]).end_ns for one in itertools.product(*layers))
    assert made.end_ns == schedule(chosen, [1.0]).end_ns
    assert made.end_ns <= 1.15 * best
