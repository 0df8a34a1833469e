"""Sizes, strides and paddings of a convolution, from the attributes of Conv and ConvTranspose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brisk.graph.program import Attribute, Dimension
from brisk.solutions.base import Problem


@dataclass(frozen=True, slots=True)
class Geometry:
    """All tuples have one entry per spatial dimension.

    ``begin`` and ``end``: zeros added before and after. Where ``same`` is ``SAME_UPPER`` or
    ``SAME_LOWER`` they depend on the input's size: see ``padding``.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    group: int
    same: str | None = None

    @property
    def is_symmetric(self) -> bool:
        """Whether each dimension has as many zeros before as after, whatever the input."""
        return self.same is None and self.begin == self.end

    def padding(self, sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Zeros before and after for an input of these spatial sizes."""
        if self.same is None:
            return self.begin, self.end
        totals = [
            max((-(-size // stride) - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
            for size, kernel, stride, dilation in zip(
                sizes, self.kernel, self.strides, self.dilations, strict=True
            )
        ]
        small = tuple(total // 2 for total in totals)
        large = tuple(total - half for total, half in zip(totals, small, strict=True))
        return (small, large) if self.same == "SAME_UPPER" else (large, small)

    def output_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Spatial sizes of a convolution's result."""
        begin, end = self.padding(sizes)
        return tuple(
            (size + before + after - dilation * (kernel - 1) - 1) // stride + 1
            for size, before, after, dilation, kernel, stride in zip(
                sizes, begin, end, self.dilations, self.kernel, self.strides, strict=True
            )
        )

    def output_dimensions(self, sizes: Sequence[Dimension]) -> tuple[Dimension, ...]:
        """As ``output_sizes`` for sizes that may be symbolic; None where nothing is known."""
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) == len(sizes):
            return self.output_sizes(numbers)
        if self.same is None:
            totals = [before + after for before, after in zip(self.begin, self.end, strict=True)]
            kept = [
                stride == 1 and total == dilation * (kernel - 1)
                for stride, total, dilation, kernel in zip(
                    self.strides, totals, self.dilations, self.kernel, strict=True
                )
            ]
        else:
            kept = [stride == 1 for stride in self.strides]
        return tuple(size if keeps else None for size, keeps in zip(sizes, kept, strict=True))


def integers(
    attributes: Mapping[str, Attribute], name: str, default: tuple[int, ...]
) -> tuple[int, ...]:
    """An integer-list attribute; ``default`` where it is absent."""
    value = attributes.get(name)
    return default if value is None else tuple(value)  # type: ignore[arg-type]  # by schema


def read_geometry(problem: Problem) -> Geometry | str:
    """The geometry of a Conv, ConvTranspose or quantised convolution, or why there is none.

    For ``SAME_*`` with an input of static size, the paddings are already worked out.
    """
    attributes = problem.attributes
    source, weight = problem.operand(0), problem.operand(weight_position(problem))
    if source is None or source.type.rank is None:
        return "the input's rank is not known"
    rank = source.type.rank - 2
    if rank < 1:
        return f"an input of rank {rank + 2} has no spatial dimension"
    kernel = integers(attributes, "kernel_shape", ())
    if not kernel and weight is not None and weight.type.is_static:
        kernel = tuple(weight.type.shape or ())[2:]  # type: ignore[assignment]  # static: ints
    if len(kernel) != rank:
        return "the kernel's shape is not known"
    ones = (1,) * rank
    strides = integers(attributes, "strides", ones)
    dilations = integers(attributes, "dilations", ones)
    pads = integers(attributes, "pads", (0,) * (2 * rank))
    group = int(attributes.get("group", 1))  # type: ignore[arg-type]  # a number by schema
    mode = str(attributes.get("auto_pad", "NOTSET"))
    if mode == "VALID":
        pads = (0,) * (2 * rank)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return Geometry(kernel, strides, dilations, pads[:rank], pads[rank:], group)
    geometry = Geometry(kernel, strides, dilations, ones, ones, group, mode)
    if problem.operator == "ConvTranspose":
        return geometry
    sizes = (source.type.shape or ())[2:]
    if strides == ones:
        sizes = ones  # with stride 1 the paddings are the same for every size
    if not all(isinstance(size, int) for size in sizes):
        return geometry
    begin, end = geometry.padding(sizes)  # type: ignore[arg-type]  # just seen to be ints
    return Geometry(kernel, strides, dilations, begin, end, group)


def weight_position(problem: Problem) -> int:
    """Which operand holds the kernel weights."""
    return 3 if problem.operator == "QLinearConv" else 1


def pad_amounts(begin: tuple[int, ...], end: tuple[int, ...]) -> list[int]:
    """Zeros before and after each dimension as ``torch.constant_pad_nd`` wants them."""
    pairs = reversed(list(zip(begin, end, strict=True)))
    return [amount for pair in pairs for amount in pair]
