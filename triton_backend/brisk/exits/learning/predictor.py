"""Trains a predictor to do what the rest of the base model does (GATI, section 3.1; [34])."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """``temperature`` and ``soft_share`` (0: cross-entropy alone) are the distillation's.

    ``exposure``: weight of the outliers' term, which asks for no opinion about them (Hendrycks
    and others, Deep Anomaly Detection with Outlier Exposure, ICLR 2019).
    """

    epochs: int = 10
    batch_rows: int = 128
    learning_rate: float = 4e-3
    weight_decay: float = 1e-2
    temperature: float = 2.0
    soft_share: float = 0.7
    exposure: float = 0.5


EXPOSED_SHARE = 0.25
"""Outliers in a batch, over its samples."""


class Descent:
    """AdamW (Loshchilov and Hutter, 2019) in one cycle (Smith and Topin, 2018) of ``steps``."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], rate: float, steps: int, weight_decay: float
    ) -> None:
        self._optimizer = torch.optim.AdamW(parameters, weight_decay=weight_decay, fused=True)
        # With a cycled momentum fewer answers can be proved: of 266 held-out digits none.
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, rate, total_steps=steps, cycle_momentum=False
        )

    def step(self, loss: torch.Tensor) -> None:
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        self._optimizer.step()
        self._schedule.step()


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Of samples: the base model's ``softened`` distribution, float32 [rows, classes], and its
    greatest class, ``labels`` int64 [rows]."""

    softened: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def of(cls, teacher: torch.Tensor, settings: PredictorSettings) -> Wanted:
        """``teacher``: the distribution. Softening happens on its logarithm, so probabilities are
        enough."""
        logits = teacher.clamp_min(1e-7).log()
        return cls((logits / settings.temperature).softmax(1), teacher.argmax(1))

    def take(self, rows: torch.Tensor) -> Wanted:
        return Wanted(self.softened[rows], self.labels[rows])


def predictor_loss(
    logits: torch.Tensor, wanted: Wanted, settings: PredictorSettings
) -> torch.Tensor:
    """Of samples, cross-entropy with their labels, and divergence from the softened distribution;
    of the outliers behind them, cross-entropy with the uniform distribution."""
    known, unknown = logits[: len(wanted.labels)], logits[len(wanted.labels) :]
    heated = (known / settings.temperature).log_softmax(1)
    soft = functional.kl_div(heated, wanted.softened, reduction="batchmean")
    loss = settings.soft_share * settings.temperature**2 * soft
    loss = loss + (1 - settings.soft_share) * functional.cross_entropy(known, wanted.labels)
    if len(unknown):
        loss = loss - settings.exposure * unknown.log_softmax(1).mean()
    return loss


def train_predictor(
    network: nn.Module,
    hidden: torch.Tensor,
    teacher: torch.Tensor,
    outliers: torch.Tensor,
    settings: PredictorSettings,
    seed: int,
) -> None:
    """Fit ``network`` in place; deterministic for one thread and one seed.

    ``hidden`` float32 [rows, ...], ``teacher`` float32 [rows, classes];
    ``outliers`` float32 [any rows, ...] are hidden outputs of inputs that mean nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    count = max(1, len(hidden) // settings.batch_rows)
    descent, wanted = _descent(network, count, settings), Wanted.of(teacher, settings)
    network.train()
    for _ in range(settings.epochs):
        for chosen in torch.randperm(len(hidden), generator=generator).tensor_split(count):
            exposed = round(len(chosen) * EXPOSED_SHARE) if len(outliers) else 0
            strange = torch.randint(max(len(outliers), 1), (exposed,), generator=generator)
            logits = network(torch.cat([hidden[chosen], outliers[strange]]))
            descent.step(predictor_loss(logits, wanted.take(chosen), settings))
    network.eval()


def fit_last_layer(
    layer: nn.Linear,
    features: torch.Tensor,
    teacher: torch.Tensor,
    outliers: torch.Tensor,
    settings: PredictorSettings,
    seed: int,
) -> None:
    """What ``train_predictor`` does, of a layer that costs less than to gather its rows: these are
    put into batches once, and the batches are shuffled in each epoch.

    ``features`` float32 [rows, inputs], ``outliers`` float32 [any rows, inputs]. Products read
    megabytes and do little with them: rows of bfloat16 take half the time of float32 where the
    processor multiplies them, and the layer's own orientation takes twice as long.
    """
    form = torch.bfloat16 if _has_bfloat16() else torch.float32
    generator = torch.Generator().manual_seed(seed)
    count = max(1, len(features) // settings.batch_rows)
    descent, wanted = _descent(layer, count, settings), Wanted.of(teacher, settings)
    exposed = torch.randperm(len(outliers), generator=generator)
    if len(outliers):  # few of them come again
        wanted_outliers = round(count * settings.batch_rows * EXPOSED_SHARE)
        exposed = exposed.repeat(-(-wanted_outliers // len(outliers)))[:wanted_outliers]
    batches = []
    for chosen, strange in zip(
        torch.randperm(len(features), generator=generator).tensor_split(count),
        exposed.tensor_split(count),
        strict=True,
    ):
        rows = torch.cat([features[chosen], outliers[strange]]).to(form)
        batches.append((rows, wanted.take(chosen)))
    for _ in range(settings.epochs):
        for number in torch.randperm(count, generator=generator).tolist():
            rows, of_rows = batches[number]
            logits = (layer.weight.to(form) @ rows.T).T.float() + layer.bias
            descent.step(predictor_loss(logits, of_rows, settings))


@functools.cache
def _has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself (AVX-512, AMX or Arm's instructions)."""
    try:
        return "bf16" in Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return False


def _descent(network: nn.Module, batches: int, settings: PredictorSettings) -> Descent:
    steps = batches * settings.epochs
    return Descent(network.parameters(), settings.learning_rate, steps, settings.weight_decay)


def last_layer(predictor: nn.Module) -> nn.Linear:
    """The layer from features to classes, which all variants end with."""
    found = predictor[-1] if isinstance(predictor, nn.Sequential) else predictor
    if not isinstance(found, nn.Linear):
        raise TypeError(f"a predictor ends with {type(found).__name__}, expected Linear")
    return found


def features_of(predictor: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """What goes into the last layer, float32 [rows, ...]."""
    if not isinstance(predictor, nn.Sequential):
        return hidden
    result: torch.Tensor = predictor[:-1](hidden)
    return result
