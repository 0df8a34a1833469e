"""The head of an exit: a predictor, and a judge that decides whether its answer can be used.

The judge is a selector behind a distance gate, or the predicted distribution's own score
(``Judge``). One evaluation covers a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from brisk.exits.files.container import DamagedFileError
from brisk.exits.guarantee.calibration import Scored
from brisk.exits.heads.distance_gate import DistanceGate, summary
from brisk.exits.heads.exit_model import Judge, Shape
from brisk.exits.heads.predictors import variant

GREATEST = 10
"""The number of the distribution's greatest values, sorted, that the selector sees: the whole
distribution in the order of the classes would need far more samples."""

HIDDEN_UNITS = 32
FARTHEST = 4.0
"""The bound, either way, to which logarithms of distances are clipped for the selector."""

REFUSED = 0.98
"""The share of each kind of outliers that an exit's floor rejects."""

DOUBTED = 0.05
"""The share of ordinary rows, those of the lowest scores, that a floor rejects: rows out of
distribution that are like no kind of outliers have such scores."""

FLOOR = -12.0
"""The bound to which log-probabilities are clipped for the selector."""


class Selector(nn.Module):
    """Decides whether a prediction can be used, by one hidden layer over the distribution.

    Maps logits float32 [rows, classes] and the gate's distances [rows] to the logit of a hit,
    float32 [rows]. GATI's selector (section 3.1) sees the distribution only, and so cannot
    recognise a confident prediction for an input that is unlike its class.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.width = min(classes, GREATEST)
        self.network = nn.Sequential(
            nn.Linear(self.width + 1, HIDDEN_UNITS), nn.ReLU(), nn.Linear(HIDDEN_UNITS, 1)
        )

    def forward(self, logits: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.network(self.seen(logits, distances))
        return result.squeeze(1)

    def seen(self, logits: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        """Return what the network reads, float32 [rows, ``width`` + 1]."""
        greatest = logits.log_softmax(1).clamp_min(FLOOR).topk(self.width, 1).values
        return torch.cat([greatest, distances.clamp(-FARTHEST, FARTHEST).unsqueeze(1)], 1)


class ExitHead(nn.Module):
    """Maps a hidden output float32 [rows, ...] to logits [rows, classes], a score [rows] in 0..1,
    and ``near``, bool [rows]: whether the row is in the distribution of the training data.

    A row that is out of distribution, or whose score is below ``floor``, has score 0: it is never
    answered. No later exit may answer an out-of-distribution row either, since there it may look
    like an ordinary one. Hardly any outlier reaches the floor; it matters where a predictor is so
    good that accuracy alone would allow any threshold.
    """

    judge: Judge
    floor: torch.Tensor

    def __init__(self, predictor: nn.Module) -> None:
        super().__init__()
        self.predictor = predictor
        self.register_buffer("floor", torch.zeros(()))

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits: torch.Tensor = self.predictor(hidden)
        score, near = self.decide(logits, self.distance(hidden, logits.argmax(1)))
        return logits, score, near

    @property
    def is_whole(self) -> bool:
        """Whether the head judges the logits of a whole model, which is not trained here."""
        return isinstance(self.predictor, nn.Identity)

    def distance(self, hidden: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Return the distance of rows to the data of the predicted ``classes`` [rows]. Without a
        gate it is 0, or NaN for rows that are not finite."""
        sums = hidden.flatten(1).sum(1)
        return sums - sums

    def decide(
        self, logits: torch.Tensor, distances: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return score and ``near`` of predictions, given their rows' distances [rows]."""
        raise NotImplementedError

    @torch.no_grad()
    def set_floor(self, rows: Predicted, outliers: Predicted) -> None:
        """Set the floor that at most ``1 - REFUSED`` of each kind of ``outliers`` reach; above 1,
        where nothing is answered, if more have the greatest score.

        The outliers have trained nothing; their ``classes`` are their kinds. If some of them have
        a score at all, ``DOUBTED`` of the ordinary ``rows`` that the gate passes stay under the
        floor, too, since out-of-distribution rows of other kinds have such scores.
        """
        self.floor.zero_()
        scores, _ = self.decide(outliers.logits, outliers.distances)
        found = [
            scores[outliers.classes == kind].quantile(REFUSED, interpolation="higher")
            for kind in set(outliers.classes.tolist())
        ]
        reached = torch.stack(found).max()
        if reached > 0:
            above = float(reached.nextafter(torch.tensor(2.0)))
            ordinary, _ = self.decide(rows.logits, rows.distances)
            passing = ordinary[ordinary > 0]
            doubted = float(passing.quantile(DOUBTED)) if len(passing) else 0.0
            self.floor.fill_(max(above, doubted))


class GatedHead(ExitHead):
    """A head whose judge sees only the rows that a distance gate passes."""

    def __init__(self, predictor: nn.Module, gate: DistanceGate) -> None:
        super().__init__(predictor)
        self.gate = gate

    def distance(self, hidden: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return self.gate.distance(summary(hidden), classes)

    def decide(
        self, logits: torch.Tensor, distances: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        relative = self.gate.relative(distances)
        score = self.sure(logits, relative)
        near = relative <= 0
        return score * (near & (score >= self.floor)), near

    def sure(self, logits: torch.Tensor, relative: torch.Tensor) -> torch.Tensor:
        """Return the confidence in each row, in 0..1; ``relative``: ``DistanceGate.relative``."""
        raise NotImplementedError


class SelectedHead(GatedHead):
    """A gated head with a selector as its judge."""

    judge = Judge.SELECTOR

    def __init__(self, predictor: nn.Module, selector: Selector, gate: DistanceGate) -> None:
        super().__init__(predictor, gate)
        self.selector = selector

    def sure(self, logits: torch.Tensor, relative: torch.Tensor) -> torch.Tensor:
        return self.selector(logits, relative).sigmoid()


class GatedMarginHead(GatedHead):
    """A gated head judged by the margin of its predictor's distribution."""

    judge = Judge.GATED_MARGIN

    def sure(self, logits: torch.Tensor, relative: torch.Tensor) -> torch.Tensor:
        return margin(logits)


class PlainHead(ExitHead):
    """A head without a gate, judged by its predictor's distribution.

    Rows with NaN are out of distribution.
    """

    def __init__(self, predictor: nn.Module, judge: Judge) -> None:
        super().__init__(predictor)
        self.judge = judge

    def decide(
        self, logits: torch.Tensor, distances: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        is_margin = self.judge is Judge.MARGIN
        score = margin(logits) if is_margin else logits.softmax(1).max(1).values
        near = (logits.sum(1) + distances).isfinite()
        return torch.where(near & (score >= self.floor), score, 0.0), near


def margin(logits: torch.Tensor) -> torch.Tensor:
    """Return the greatest probability less the second greatest, [rows]."""
    greatest = logits.softmax(1).topk(2, 1).values
    return greatest[:, 0] - greatest[:, 1]


PREDICTED_ROWS = 256


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """Rows that a predictor has seen, its selector has not: ``logits`` [rows, classes],
    the gate's ``distances`` float32 [rows], the base model's ``classes`` int64 [rows]."""

    logits: torch.Tensor
    distances: torch.Tensor
    classes: torch.Tensor

    def take(self, rows: np.ndarray) -> Predicted:
        chosen = torch.from_numpy(rows)
        return Predicted(self.logits[chosen], self.distances[chosen], self.classes[chosen])


@torch.no_grad()
def predict(head: ExitHead, hidden: torch.Tensor, classes: torch.Tensor) -> Predicted:
    """Return hidden outputs as predictor and gate see them; the gate may lack its limit."""
    found = []
    for part in torch.split(hidden, PREDICTED_ROWS):
        logits = head.predictor(part)
        found.append((logits, head.distance(part, logits.argmax(1))))
    logits, distances = (torch.cat(column) for column in zip(*found, strict=True))
    return Predicted(logits, distances, classes)


@torch.no_grad()
def decided(head: ExitHead, rows: Predicted) -> Scored:
    """Return the decisions of judge and gate about rows that the predictor has seen."""
    score, near = head.decide(rows.logits, rows.distances)
    return Scored(score.numpy(), (rows.logits.argmax(1) == rows.classes).numpy(), near.numpy())


def empty_head(name: str, shape: Shape, classes: int, judge: Judge = Judge.SELECTOR) -> ExitHead:
    """Return an untrained head in the form that is served."""
    predictor = variant(name).build(shape, classes, normalised=False)
    network: ExitHead
    if judge.is_gated:
        gate = DistanceGate(summary(torch.zeros(1, *shape)).shape[1], classes)
        network = GatedMarginHead(predictor, gate)
        if judge is Judge.SELECTOR:
            network = SelectedHead(predictor, Selector(classes), gate)
    else:
        network = PlainHead(predictor, judge)
    return network.eval().requires_grad_(False)


def load_weights(network: ExitHead, tensors: Mapping[str, np.ndarray]) -> None:
    """Load ``tensors`` into ``network``. Raises DamagedFileError if they do not fit it."""
    state = {name: torch.tensor(array, dtype=torch.float32) for name, array in tensors.items()}
    try:
        network.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise DamagedFileError(f"its tensors are not those of the variant: {error}") from error


def weights_of(network: ExitHead) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def whole_model(floor: float) -> ExitHead:
    """Return the head that judges a whole model's answers: its predictor passes logits through."""
    network = PlainHead(nn.Identity(), Judge.MARGIN)
    network.floor.fill_(floor)
    return network.eval().requires_grad_(False)
