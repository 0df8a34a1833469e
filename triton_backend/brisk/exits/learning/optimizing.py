"""AdamW with a cycle of its learning rate, for small tensors whose gradients are given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.optim.adamw import adamw

WARM_UP = 0.3
"""Share of the steps in which the rate rises, from ``1 / START``; it falls to nothing then."""

START = 25.0
_BETAS, _TINY = (0.9, 0.999), 1e-8


class OneCycle:
    """Decoupled weight decay (Loshchilov and Hutter, 2019), one cycle (Smith and Topin, 2018).

    torch's optimizers and schedules take some 100 µs a step, however small the tensors are; its
    function takes 30 to 50.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], rate: float, steps: int) -> None:
        self.weight_decay = 1e-2
        self._tensors = list(tensors)
        self._rate = rate
        self._steps = steps
        self._taken = 0
        self._means = [torch.zeros_like(tensor) for tensor in tensors]
        self._squares = [torch.zeros_like(tensor) for tensor in tensors]
        self._counts = [torch.zeros(()) for _ in tensors]

    @property
    def rate(self) -> float:
        """Of the next step."""
        rising = max(WARM_UP * self._steps, 1.0)
        if self._taken < rising:
            share = (1 - math.cos(math.pi * self._taken / rising)) / 2
            return self._rate * (1 / START + (1 - 1 / START) * share)
        falling = max(self._steps - rising, 1.0)
        return (
            self._rate * (1 + math.cos(math.pi * min(1.0, (self._taken - rising) / falling))) / 2
        )

    def take(self, gradients: Sequence[torch.Tensor]) -> None:
        """One step. Precondition: no gradient is being recorded."""
        rate = self.rate
        self._taken += 1
        adamw(
            *(self._tensors, list(gradients), self._means, self._squares, [], self._counts),
            fused=True,
            amsgrad=False,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            lr=rate,
            weight_decay=self.weight_decay,
            eps=_TINY,
            maximize=False,
        )
