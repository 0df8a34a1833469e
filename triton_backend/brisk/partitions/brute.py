"""An exhaustive search of plans, to check the planner by, for models of few segments."""

from __future__ import annotations

from itertools import combinations

from brisk.partitions.cost import PartitionPlan, Pricing, Turns


def brute_plans(pricing: Pricing, turns: Turns) -> tuple[PartitionPlan, ...]:
    """Return the best plan for each number of parts; of equal plans, that of the fewest groups,
    then of the first cuts.

    It tries all cuts with every number of groups for which there are enough hosts: O(2^n) time.
    """
    borders = range(1, len(pricing.profile))
    return tuple(
        min(
            (
                pricing.plan(cuts, groups)
                for groups in range(1, pricing.most_groups(parts) + 1)
                for cuts in combinations(borders, parts - 1)
            ),
            key=lambda plan: plan.latency_s(turns),
        )
        for parts in range(1, pricing.most_parts + 1)
    )
