"""The sliding window of a convolution or a pooling: its sizes, its padding, and its positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from brisk.solutions.base import Problem

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """All sizes are per spatial axis. ``before`` and ``after``: the padding.

    ``same``: ``UPPER`` or ``LOWER`` where the padding depends on the input's size, else None.
    """

    kernel: Sizes
    strides: Sizes
    dilations: Sizes
    before: Sizes
    after: Sizes
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
    def is_symmetric(self) -> bool:
        """Whether torch's own operators can pad: both sides alike, whatever the input."""
        return self.same is None and self.before == self.after and min(self.before) >= 0

    def span(self, axis: int) -> int:
        """How many elements a window reaches over."""
        return self.dilations[axis] * (self.kernel[axis] - 1) + 1

    def margins(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Padding before and after each axis with which the windows fit exactly.

        Negative behind an axis whose last elements no window reaches. With ``ceil`` the last
        window starts inside the tensor or its explicit padding before it.
        """
        margins = []
        for i, size in enumerate(sizes):
            stride, span = self.strides[i], self.span(i)
            before, after = self.before[i], self.after[i]
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

    def pad(self, x: Tensor, value: Any) -> Tensor:
        """``x`` of shape [N, C, …] with the margins filled with ``value``."""
        sides = [side for pair in reversed(self.margins(x.shape[2:])) for side in pair]
        return functional.pad(x, sides, value=value)

    def mask(self, x: Tensor, with_pads: bool) -> Tensor:
        """1 for each element that an average counts, 0 elsewhere; padded as ``pad`` does."""
        mask = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
        if not with_pads:
            return self.pad(mask, 0)
        counted, beyond = [], []
        for i, (before, after) in reversed(list(enumerate(self.margins(x.shape[2:])))):
            inside = after if self.same is not None else min(self.after[i], after)
            counted += [before, inside]
            beyond += [0, after - inside]
        return functional.pad(functional.pad(mask, counted, value=1), beyond, value=0)

    def slide(self, padded: Tensor) -> Tensor:
        """All windows, as a view of the padded tensor: [N, C, positions …, kernel …]."""
        for i, (step, stride) in enumerate(zip(self.dilations, self.strides, strict=True)):
            padded = padded.unfold(2 + i, self.span(i), stride)[..., ::step]
        return padded


def refuse_rank(problem: Problem) -> str | None:
    """Why the input has no spatial axes, as far as is known."""
    rank = problem.rank()
    if rank is None:
        return "the input's rank is not known"
    return f"an input of rank {rank} has no spatial dimension" if rank < 3 else None


def refuse_window(problem: Problem) -> str | None:
    """Why the window cannot be read before the first input has come."""
    kernel = _kernel(problem)
    if (reason := refuse_rank(problem)) is None and len(kernel) != (problem.rank() or 0) - 2:
        return "the kernel's shape is not known"
    return reason


def read_window(problem: Problem) -> Window:
    """The window of a problem that ``refuse_window`` has nothing against.

    Where the input's size does not matter or is known, ``SAME_*`` is already worked out; not for
    ConvTranspose, where it is about the result.
    """
    kernel = _kernel(problem)
    ones, zeros = (1,) * len(kernel), (0,) * (2 * len(kernel))
    mode = problem.attribute("auto_pad", "NOTSET")
    pads = tuple(problem.attribute("pads", zeros)) if mode in ("NOTSET", "") else zeros
    window = Window(
        kernel=kernel,
        strides=tuple(problem.attribute("strides", ones)),
        dilations=tuple(problem.attribute("dilations", ones)),
        before=pads[: len(kernel)],
        after=pads[len(kernel) :],
        ceil=bool(problem.attribute("ceil_mode", 0)),
        same=mode.removeprefix("SAME_") if mode.startswith("SAME") else None,
    )
    if window.same is None or problem.operator == "ConvTranspose":
        return window
    shape: Any = problem.operands[0].type.shape or ()  # type: ignore[union-attr]  # checked
    sizes = ones if window.strides == ones else shape[2:]
    if not all(isinstance(size, int) for size in sizes):
        return window
    before, after = zip(*window.margins(sizes), strict=True)
    return dataclasses.replace(window, before=before, after=after, same=None)


def _kernel(problem: Problem) -> Sizes:
    weight = problem.operand(3 if problem.operator == "QLinearConv" else 1)
    sizes: Any = problem.attribute("kernel_shape", ())
    if not sizes and weight is not None and weight.type.is_static:
        sizes = (weight.type.shape or ())[2:]
    return tuple(sizes)
