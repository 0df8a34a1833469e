"""Which way of looking up and which chain are taken: the mean, and what a miss costs."""

from __future__ import annotations

import dataclasses

import numpy as np

from brisk.exits.composition import Candidate, CompositionProblem, Outcomes
from brisk.exits.exploration.choosing import noticed_at
from brisk.exits.exploration.composing import composed
from brisk.exits.exploration.settings import ExplorationSettings

SETTINGS = ExplorationSettings(miss_cost=0.02)


def problem(burden_s: float, lookup_s: float = 0.0, missed: int = 40) -> CompositionProblem:
    """One cache that answers all of a hundred inputs but ``missed``."""
    hits = np.arange(100)[None] >= missed
    one = Candidate(0, "one", float(hits.mean()), 1.0, lookup_s, 1, burden_s)
    return CompositionProblem(
        reach_s=(0.1,),
        total_s=1.0,
        candidates=(one,),
        accuracy=0.97,
        outcomes=Outcomes(hits, np.ones_like(hits)),
    )


def test_a_way_on_which_misses_are_on_time_goes_before_a_faster_one() -> None:
    synchronous, found = composed({True: problem(0.03), False: problem(0.01, 0.2)}, SETTINGS)
    assert (synchronous, found.chosen) == (False, (0,))
    careless = dataclasses.replace(SETTINGS, miss_cost=None)
    synchronous, _ = composed({True: problem(0.03), False: problem(0.01, 0.2)}, careless)
    assert synchronous


def test_the_mean_alone_counts_where_hardly_an_input_is_missed() -> None:
    ways = {True: problem(0.03, missed=0), False: problem(0.01, 0.2, missed=0)}
    assert composed(ways, SETTINGS)[0]


def test_the_mean_alone_counts_where_no_cache_is_on_time() -> None:
    synchronous, found = composed({True: problem(0.03), False: problem(0.05, 0.2)}, SETTINGS)
    assert (synchronous, found.chosen) == (True, (0,))


def test_a_chain_is_cut_short_where_all_of_it_would_be_late() -> None:
    hits = np.stack([np.arange(100) >= 40, np.arange(100) >= 10])
    candidates = tuple(
        Candidate(point, "one", float(hit.mean()), 1.0, 0.0, 1, 0.015)
        for point, hit in enumerate(hits)
    )
    both = dataclasses.replace(
        problem(0.0),
        reach_s=(0.1, 0.3),
        candidates=candidates,
        outcomes=Outcomes(hits, np.ones_like(hits)),
    )
    careless = dataclasses.replace(SETTINGS, miss_cost=None)
    assert composed({True: both}, careless)[1].chosen == (0, 1)
    assert composed({True: both}, SETTINGS)[1].chosen == (1,)


def test_the_lane_is_asked_at_the_first_boundary_where_it_will_be_done() -> None:
    reach_s = {0: 0.0, 3: 0.3, 5: 0.5, 8: 0.8}
    assert noticed_at(3, 0.2, reach_s) == 5
    assert noticed_at(3, 0.21, reach_s) == 8
    assert noticed_at(5, 0.4, reach_s) is None
