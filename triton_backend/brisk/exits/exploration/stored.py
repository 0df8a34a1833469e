"""Hidden outputs as they are stored for training: themselves, or what one variant reads of them.

Those of a photograph take megabytes at each point. What the variant of averages reads of them, its
features and the gate's summary, takes kilobytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from brisk.exits.data.collecting import Reduce
from brisk.exits.heads.distance_gate import summary
from brisk.exits.heads.exit_head import ExitHead, Predicted, predict
from brisk.exits.heads.exit_model import Shape
from brisk.exits.heads.predictors import variant
from brisk.exits.learning.predictor import features_of, predict_features

REDUCED = "Pool(4096)"
"""The variant that is trained where hidden outputs are too large to be stored."""

READ_ROWS = 256


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """Rows of hidden outputs, float32."""

    values: torch.Tensor
    """The hidden outputs [rows, ...], or the features that ``REDUCED`` reads, [rows, features]."""
    summaries: torch.Tensor | None
    """The gate's summaries, [rows, features]; None: ``values`` are the hidden outputs."""

    def features(self, predictor: nn.Module) -> torch.Tensor:
        """Return the inputs of the predictor's last layer."""
        return features_of(predictor, self.values) if self.summaries is None else self.values

    def summary(self, most: int) -> torch.Tensor:
        """Return the gate's summaries of the first ``most`` rows."""
        if self.summaries is None:
            return summary(self.values[:most])
        return self.summaries[:most]

    def predicted(self, head: ExitHead, classes: np.ndarray) -> Predicted:
        """Return the rows as ``head`` sees them; ``classes``: the model's, int64 [rows]."""
        labels = torch.from_numpy(classes)
        if self.summaries is None:
            return predict(head, self.values, labels)
        return predict_features(head, self.values, self.summaries, labels)


def read_rows(values: np.ndarray, summaries: np.ndarray | None, rows: np.ndarray) -> StoredRows:
    """Return ``rows`` of arrays that may be mapped from files."""
    return StoredRows(
        tensor_of(values, rows), None if summaries is None else tensor_of(summaries, rows)
    )


def tensor_of(stored: np.ndarray, rows: np.ndarray) -> torch.Tensor:
    """Return rows of a mapped file as a tensor of its own."""
    order = np.argsort(rows)
    picked = np.empty((len(rows), *stored.shape[1:]), stored.dtype)
    for start in range(0, len(rows), READ_ROWS):
        places = order[start : start + READ_ROWS]
        picked[places] = stored[rows[places]]
    return torch.from_numpy(picked)


def reduction(shape: Shape, classes: int) -> Reduce:
    """Return the function from hidden outputs [rows, *shape] to what ``REDUCED`` reads of them."""
    predictor = variant(REDUCED).build(shape, classes, normalised=False)

    def reduce(hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = torch.tensor(hidden)
        with torch.no_grad():
            return features_of(predictor, values).flatten(1).numpy(), summary(values).numpy()

    return reduce


def with_room(
    values: Mapping[str, np.ndarray], classes: int, variants: Sequence[str], most_bytes: int
) -> dict[str, Reduce | None]:
    """Return the points whose hidden outputs can be stored in ``most_bytes`` a row, each with its
    ``reduction``; None: it is stored as it is.

    ``values``: a row of each point, by name. As many points as can be are stored, and as many of
    these as they are, small ones first. Without ``REDUCED`` among the ``variants`` none is
    reduced.
    """
    reductions: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {}
    least = {name: value.nbytes for name, value in values.items()}
    for name, value in values.items():
        if REDUCED not in variants:
            break
        reduce = reduction(tuple(value.shape[1:]), classes)
        size = sum(part.nbytes for part in reduce(value))
        if size < value.nbytes:
            least[name], reductions[name] = size, reduce
    left, kept = most_bytes, {}
    for name in sorted(values, key=least.__getitem__):
        if least[name] <= left:
            left -= least[name]
            kept[name] = reductions.get(name)
    for name in sorted(kept, key=lambda each: values[each].nbytes):
        more = values[name].nbytes - least[name]
        if kept[name] is not None and more <= left:
            left -= more
            kept[name] = None
    return kept
