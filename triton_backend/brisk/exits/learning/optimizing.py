"""AdamW with a cycle of its learning rate, for small tensors whose gradients are given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

WARM_UP = 0.3
"""Share of the steps in which the rate rises, from ``1 / START``; it falls to nothing then."""

START = 25.0
_BETAS, _TINY = (0.9, 0.999), 1e-8


class OneCycle:
    """Decoupled weight decay (Loshchilov and Hutter, 2019), one cycle (Smith and Topin, 2018).

    torch's own take some 100 µs a step, however small the tensors are.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], rate: float, steps: int) -> None:
        self.weight_decay = 1e-2
        self._tensors = tuple(tensors)
        self._rate = rate
        self._steps = steps
        self._taken = 0
        self._means = [torch.zeros_like(tensor) for tensor in tensors]
        self._squares = [torch.zeros_like(tensor) for tensor in tensors]

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
        first, second = (1 - beta**self._taken for beta in _BETAS)
        for tensor, gradient, mean, square in zip(
            self._tensors, gradients, self._means, self._squares, strict=True
        ):
            mean.lerp_(gradient, 1 - _BETAS[0])
            square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
            tensor.mul_(1 - rate * self.weight_decay)
            scale = square.sqrt().div_(math.sqrt(second)).add_(_TINY)
            tensor.addcdiv_(mean, scale, value=-rate / first)
