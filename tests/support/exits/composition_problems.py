"""Random composition problems."""

from __future__ import annotations

import numpy as np

from brisk.exits.exploration.composition import CandidateExit, CompositionProblem, Outcomes


def random_problem(
    seed: int, points: int = 4, variants: int = 2, inputs: int = 60
) -> CompositionProblem:
    """Later points hit more."""
    random = np.random.default_rng(seed)
    reach_s = tuple(np.cumsum(random.uniform(0.5, 2.0, points)).tolist())
    total_s = reach_s[-1] + float(random.uniform(0.5, 2.0))
    hardness = random.uniform(0, 1, inputs)
    hits, right, candidates = [], [], []
    for point in range(points):
        for variant in range(variants):
            strength = (point + 1) / (points + 1) * random.uniform(0.6, 1.2)
            hit = hardness + random.normal(0, 0.1, inputs) < strength
            correct = random.uniform(0, 1, inputs) < random.uniform(0.85, 1.0)
            hits.append(hit)
            right.append(correct)
            candidates.append(
                CandidateExit(
                    point=point,
                    variant=f"variant{variant}",
                    hit_rate=float(hit.mean()),
                    accuracy=float(correct[hit].mean()) if hit.any() else 1.0,
                    evaluation_s=float(random.uniform(0.1, 2.0)),
                    memory_bytes=int(random.integers(1, 100)),
                    overhead_s=float(random.uniform(0, 0.3)),
                )
            )
    return CompositionProblem(
        reach_s=reach_s,
        total_s=total_s,
        candidates=tuple(candidates),
        accuracy=float(random.uniform(0.9, 0.99)),
        memory_budget_bytes=int(random.integers(20, 250)),
        outcomes=Outcomes(np.array(hits), np.array(right)),
    )
