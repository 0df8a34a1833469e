"""The sliding window of a pooling operator: its sizes, its padding, and its positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from brisk.solutions.base import Problem
from brisk.solutions.rules import attribute, rank

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """All sizes are per spatial axis. ``same``: ``UPPER``, ``LOWER`` or None for explicit pads."""

    kernel: Sizes
    strides: Sizes
    dilations: Sizes
    pads_before: Sizes
    pads_after: Sizes
    ceil: bool
    same: str | None

    @property
    def axes(self) -> int:
        return len(self.kernel)

    @property
    def inner_axes(self) -> Sizes:
        """The axes that ``slide`` adds, for reducing over them."""
        return tuple(range(-self.axes, 0))

    @property
    def is_dilated(self) -> bool:
        return any(step != 1 for step in self.dilations)

    @property
    def is_native(self) -> bool:
        """torch's own kernels pad both sides alike, by half the window at most."""
        return (
            self.same is None
            and self.pads_before == self.pads_after
            and all(2 * pad <= size for pad, size in zip(self.pads_before, self.kernel))  # noqa: B905
        )

    def margins(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Padding before and after each axis with which the windows fit exactly.

        Negative behind an axis whose last elements no window reaches. The last window starts
        inside the tensor or its explicit padding before it.
        """
        margins = []
        for i, size in enumerate(sizes):
            stride, span = self.strides[i], self.dilations[i] * (self.kernel[i] - 1) + 1
            before, after = self.pads_before[i], self.pads_after[i]
            if self.same is not None:
                count = -(-size // stride)
                total = max((count - 1) * stride + span - size, 0)
                before = total // 2 if self.same == "UPPER" else total - total // 2
            else:
                room = size + before + after - span
                count = (-(-room // stride) if self.ceil else room // stride) + 1
                if self.ceil and (count - 1) * stride >= size + before:
                    count -= 1
            margins.append((before, (count - 1) * stride + span - size - before))
        return margins

    def pad(self, x: torch.Tensor, value: Any) -> torch.Tensor:
        """``x`` of shape [N, C, …] with the margins filled with ``value``."""
        sides = [side for pair in reversed(self.margins(x.shape[2:])) for side in pair]
        return functional.pad(x, sides, value=value)

    def mask(self, x: torch.Tensor, with_pads: bool) -> torch.Tensor:
        """1 for each element that an average counts, 0 elsewhere; padded as ``pad`` does."""
        mask = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
        if not with_pads:
            return self.pad(mask, 0)
        sides = []
        for i, (before, after) in reversed(list(enumerate(self.margins(x.shape[2:])))):
            inside = after if self.same is not None else min(self.pads_after[i], after)
            sides.append((before, inside, after - inside))
        counted = [side for before, inside, _ in sides for side in (before, inside)]
        beyond = [side for _, _, rest in sides for side in (0, rest)]
        return functional.pad(functional.pad(mask, counted, value=1), beyond, value=0)

    def slide(self, x: torch.Tensor, value: Any) -> torch.Tensor:
        """All windows, as a view of the padded tensor: [N, C, positions …, kernel …]."""
        return self.slide_padded(self.pad(x, value))

    def slide_padded(self, padded: torch.Tensor) -> torch.Tensor:
        for i, (size, step, stride) in enumerate(
            zip(self.kernel, self.dilations, self.strides, strict=True)
        ):
            padded = padded.unfold(2 + i, step * (size - 1) + 1, stride)[..., ::step]
        return padded


def read_window(problem: Problem) -> Window:
    """The window of a pooling problem whose operand's rank is known."""
    axes = (rank(problem) or 2) - 2
    ones, zeros = (1,) * axes, (0,) * 2 * axes
    mode = attribute(problem, "auto_pad", "NOTSET")
    pads = tuple(attribute(problem, "pads", zeros)) if mode in ("NOTSET", "") else zeros
    return Window(
        kernel=tuple(attribute(problem, "kernel_shape", ones)),
        strides=tuple(attribute(problem, "strides", ones)),
        dilations=tuple(attribute(problem, "dilations", ones)),
        pads_before=pads[:axes],
        pads_after=pads[axes:],
        ceil=bool(attribute(problem, "ceil_mode", 0)),
        same=mode.removeprefix("SAME_") if mode.startswith("SAME") else None,
    )
