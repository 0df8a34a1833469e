"""Training of predictors to do what the rest of the base model does (GATI, section 3.1; [34])."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.optim.adamw import adamw

from brisk.exits.heads.exit_head import ExitHead, GatedHead, Predicted


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """The training of a predictor."""

    epochs: int = 10
    batch_rows: int = 128
    learning_rate: float = 4e-3
    weight_decay: float = 1e-2
    temperature: float = 2.0
    """The distillation's temperature."""
    soft_share: float = 0.7
    """The share of the distillation's divergence; 0: cross-entropy alone."""
    exposure: float = 0.5
    """The weight of the outliers' term, which asks for no opinion about them (Hendrycks and
    others, Deep Anomaly Detection with Outlier Exposure, ICLR 2019)."""


WARM_UP = 0.3
"""The share of the steps in which the rate rises, from ``1 / START``; then it falls to 0."""

START = 25.0
_BETAS, _TINY = (0.9, 0.999), 1e-8


class OneCycle:
    """Decoupled weight decay (Loshchilov and Hutter, 2019), one cycle (Smith and Topin, 2018).

    torch's optimizers and schedules take some 100 µs a step, however small the tensors are; its
    function takes 30 to 50.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], rate: float, steps: int, weight_decay: float = 1e-2
    ) -> None:
        self.weight_decay = weight_decay
        self._tensors = list(tensors)
        self._rate = rate
        self._steps = steps
        self._taken = 0
        self._means = [torch.zeros_like(tensor) for tensor in tensors]
        self._squares = [torch.zeros_like(tensor) for tensor in tensors]
        self._counts = [torch.zeros(()) for _ in tensors]

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        rising = max(WARM_UP * self._steps, 1.0)
        if self._taken < rising:
            share = (1 - math.cos(math.pi * self._taken / rising)) / 2
            return self._rate * (1 / START + (1 - 1 / START) * share)
        falling = max(self._steps - rising, 1.0)
        return (
            self._rate * (1 + math.cos(math.pi * min(1.0, (self._taken - rising) / falling))) / 2
        )

    def take(self, gradients: Sequence[torch.Tensor]) -> None:
        """Take one step. Precondition: no gradient is being recorded."""
        rate = self.rate
        self._taken += 1
        adamw(
            params=self._tensors,
            grads=list(gradients),
            exp_avgs=self._means,
            exp_avg_sqs=self._squares,
            max_exp_avg_sqs=[],
            state_steps=self._counts,
            fused=True,
            amsgrad=False,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            lr=rate,
            weight_decay=self.weight_decay,
            eps=_TINY,
            maximize=False,
        )


EXPOSED_SHARE = 0.25
"""The number of outliers in a batch as a share of its samples."""


def distillation_loss(
    logits: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor, settings: PredictorSettings
) -> torch.Tensor:
    """Return cross-entropy with the labels, and divergence from the teacher's softened
    distribution.

    ``teacher``: the base model's distribution, float32 [rows, classes]. Softening happens on its
    logarithm, so probabilities are enough.
    """
    heat = settings.temperature
    soft_teacher = softened(teacher, heat)
    soft = functional.kl_div((logits / heat).log_softmax(1), soft_teacher, reduction="batchmean")
    hard = functional.cross_entropy(logits, labels)
    return settings.soft_share * heat * heat * soft + (1 - settings.soft_share) * hard


def softened(teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the distribution of the same logits at that temperature."""
    return (teacher.clamp_min(1e-7).log() / temperature).softmax(1)


def exposure_loss(logits: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of outliers' predictions with the uniform distribution."""
    return -logits.log_softmax(1).mean()


def train_predictor(
    network: nn.Module,
    hidden: torch.Tensor,
    teacher: torch.Tensor,
    labels: torch.Tensor,
    outliers: torch.Tensor,
    settings: PredictorSettings,
    seed: int,
) -> None:
    """Fit ``network`` in place; deterministic for one thread and one seed.

    ``hidden`` float32 [rows, ...], ``teacher`` float32 [rows, classes], ``labels`` int64 [rows];
    ``outliers`` float32 [any rows, ...] are hidden outputs of inputs that mean nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    batches = max(1, len(hidden) // settings.batch_rows)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=batches * settings.epochs
    )
    network.train()
    for _ in range(settings.epochs):
        order = torch.randperm(len(hidden), generator=generator)
        for chosen in order.tensor_split(batches):
            exposed = outliers[_some(len(outliers), len(chosen), generator)]
            logits = network(torch.cat([hidden[chosen], exposed]))
            of_samples, of_outliers = logits[: len(chosen)], logits[len(chosen) :]
            loss = distillation_loss(of_samples, teacher[chosen], labels[chosen], settings)
            if len(of_outliers):
                loss = loss + settings.exposure * exposure_loss(of_outliers)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch
            optimizer.step()
            schedule.step()
    network.eval()


def _some(outliers: int, rows: int, generator: torch.Generator) -> torch.Tensor:
    """Return indices of outliers to go with a batch of ``rows``."""
    count = round(rows * EXPOSED_SHARE) if outliers else 0
    return torch.randint(max(outliers, 1), (count,), generator=generator)


def last_layer(predictor: nn.Module) -> nn.Linear:
    """Return the layer from features to classes, with which all variants end."""
    last = predictor[-1] if isinstance(predictor, nn.Sequential) else predictor
    if not isinstance(last, nn.Linear):
        raise TypeError(f"a predictor ends with {type(last).__name__}, expected Linear")
    return last


def features_of(predictor: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Return the inputs of the last layer, float32 [rows, ...]."""
    if not isinstance(predictor, nn.Sequential):
        return hidden
    result: torch.Tensor = predictor[:-1](hidden)
    return result


@torch.no_grad()
def predict_features(
    head: ExitHead, features: torch.Tensor, summaries: torch.Tensor, classes: torch.Tensor
) -> Predicted:
    """Return rows as predictor and gate see them, from the inputs of the predictor's last layer
    and the gate's summaries; the gate may lack its limit."""
    logits = features if head.is_whole else last_layer(head.predictor)(features)
    distances = torch.zeros(len(logits))
    if isinstance(head, GatedHead):
        distances = head.gate.distance(summaries, logits.argmax(1))
    return Predicted(logits, distances, classes)


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """The distributions that rows should be predicted to have, weighted; float32."""

    target: torch.Tensor
    """The weighted sum of the targets, [classes, rows]."""
    heated: torch.Tensor
    """The weight of a row's prediction at the settings' temperature, [rows]."""
    plain: torch.Tensor
    """The weight of a row's prediction at temperature 1, [rows]."""

    @classmethod
    def of_samples(cls, teacher: torch.Tensor, settings: PredictorSettings) -> Targets:
        """Return the targets of ``distillation_loss``.

        ``teacher``: the base model's distribution [rows, classes], whose greatest class is the
        label.
        """
        rows, heat = len(teacher), settings.temperature
        heated = heat * settings.soft_share / rows
        plain = (1 - settings.soft_share) / rows
        labels = functional.one_hot(teacher.argmax(1), teacher.shape[1])
        target = (softened(teacher, heat) * heated + labels * plain).T.contiguous()
        return cls(target, torch.full((rows,), heated), torch.full((rows,), plain))

    @classmethod
    def of_outliers(cls, rows: int, classes: int, settings: PredictorSettings) -> Targets:
        """Return the targets of ``exposure_loss``: uniform distributions."""
        plain = settings.exposure / max(rows, 1)
        target = torch.full((classes, rows), plain / classes)
        return cls(target, torch.zeros(rows), torch.full((rows,), plain))

    def with_rows(self, other: Targets) -> Targets:
        """Return the targets of both, the other's rows last."""
        return Targets(
            torch.cat([self.target, other.target], 1),
            torch.cat([self.heated, other.heated]),
            torch.cat([self.plain, other.plain]),
        )

    def gradient(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        """Return the gradient of the losses' sum by ``logits``, [classes, rows] both."""
        weighted = (logits / temperature).softmax(0).mul_(self.heated)
        return weighted.addcmul_(logits.softmax(0), self.plain).sub_(self.target)


@torch.no_grad()
def fit_last_layer(
    layer: nn.Linear,
    features: torch.Tensor,
    teacher: torch.Tensor,
    outliers: torch.Tensor,
    settings: PredictorSettings,
    seed: int,
) -> None:
    """Fit ``layer`` in place; deterministic for one thread and one seed.

    It does what ``train_predictor`` does for any network at a tenth of the cost for a linear
    layer, since it needs neither autograd nor copies of rows.

    ``features`` float32 [rows, inputs], ``teacher`` float32 [rows, classes]: the base model's
    distribution, whose greatest class is the label; ``outliers`` float32 [any rows, inputs].
    Rows are shuffled once, batches in each epoch. Each batch has its outliers, so that one product
    gives all logits and one all gradients. Both are bound by memory: the layer's own orientation
    takes twice as long, and so do rows of float32 over those of bfloat16, which are used if the
    processor multiplies them. Weights and sums are float32.
    """
    form = torch.bfloat16 if _has_bfloat16() else torch.float32
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(features), generator=generator)
    count = max(1, len(features) // settings.batch_rows)
    batches = []
    outlier_shares = _shares(
        len(outliers), round(settings.batch_rows * EXPOSED_SHARE), count, generator
    )
    for samples, exposed in zip(order.tensor_split(count), outlier_shares, strict=True):
        of_samples = Targets.of_samples(teacher[samples], settings)
        of_outliers = Targets.of_outliers(len(exposed), teacher.shape[1], settings)
        rows = torch.cat([features[samples], outliers[exposed]]).to(form)
        batches.append((rows, of_samples.with_rows(of_outliers)))
    weight, bias = layer.weight, layer.bias
    total = count * settings.epochs
    steps = OneCycle((weight, bias), settings.learning_rate, total, settings.weight_decay)
    for _ in range(settings.epochs):
        for number in torch.randperm(count, generator=generator).tolist():
            rows, targets = batches[number]
            logits = (weight.to(form) @ rows.T).float().add_(bias.unsqueeze(1))
            error = targets.gradient(logits, settings.temperature)
            steps.take(((error.to(form) @ rows).float(), error.sum(1)))


def _shares(
    rows: int, each: int, count: int, generator: torch.Generator
) -> Sequence[torch.Tensor]:
    """Return ``count`` times ``each`` of ``rows`` shuffled rows, repeated if they are few."""
    order = torch.randperm(rows, generator=generator)
    if rows:
        order = order.repeat(-(-count * each // rows))[: count * each]
    return order.tensor_split(count)


@functools.cache
def _has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself (AVX-512, AMX or Arm's instructions)."""
    try:
        return "bf16" in Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return False
