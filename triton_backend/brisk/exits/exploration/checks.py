"""Is this a model that caches can serve? Asked of its answers, since its types cannot tell."""

from __future__ import annotations

import math

import numpy as np

from brisk.errors import InvalidModelError
from brisk.exits.base_model import BaseModel
from brisk.exits.data.collecting import bind_rows, hidden_and_scores
from brisk.exits.data.samples import Samples
from brisk.exits.points import ExitPoint
from brisk.exits.scores import Scores

MOST_UNCERTAIN = 0.6
"""Mean entropy of the answers, of that of a uniform distribution: class scores are peaked."""

COMPARED_ROWS = 3


def check_classes(teacher: np.ndarray, scores: Scores, model: str) -> None:
    """Raises InvalidModelError where the answers do not look like scores of classes.

    ``teacher``: softmax of the scores, [rows, classes]. Nothing is asked of scores which the model
    itself or the user calls such.
    """
    if scores.is_certain:
        return
    entropy = -(teacher * np.log(np.maximum(teacher, 1e-12))).sum(1).mean()
    share = float(entropy) / math.log(scores.classes)
    if share > MOST_UNCERTAIN:
        raise InvalidModelError(
            f"output '{scores.value}' of model '{model}' does not look like class scores: on the "
            f"data given, a softmax of it is {share:.0%} as uncertain as guessing, expected at "
            f"most {MOST_UNCERTAIN:.0%}. Learned caches answer classifications only; if it is "
            f"one, say so with --output {scores.value}"
        )


def check_rows(
    base: BaseModel, points: tuple[ExitPoint, ...], scores: Scores, samples: Samples
) -> None:
    """Raises InvalidModelError where a row's values depend on the other rows of its batch."""
    rows = min(COMPARED_ROWS, len(samples))
    together, _ = hidden_and_scores(base, points, scores, bind_rows(samples.take(slice(rows))))
    for row in range(rows):
        one = samples.take(slice(row, row + 1))
        alone, _ = hidden_and_scores(base, points, scores, bind_rows(one))
        for point, ours, theirs in zip(points, alone, together, strict=True):
            close = np.allclose(ours[0], theirs[row], rtol=1e-2, atol=1e-3)
            if not close:
                raise InvalidModelError(
                    f"model '{base.graph.name}' mixes the rows of a batch (value "
                    f"'{point.value}'): learned caches need rows that can leave it"
                )
