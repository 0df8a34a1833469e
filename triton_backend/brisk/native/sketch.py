"""A network being drawn up: values, their places in memory, and the steps between them.

Values of rank 4 are feature maps (batch, channels, height, width) and lie channels-last; values of
rank 3 are (batch, rows, channels), of rank 2 (batch, channels). Sizes here are of one image.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from brisk.compiled.library import Library
from brisk.compiled.table import ACTIVATIONS, Kind, Place, StepEntry, TensorEntry
from brisk.graph.program import Dimension
from brisk.solutions.onednn_fusion import NO_ACTIVATION, Activation

WeightsOf = Callable[[int], "tuple[np.ndarray, np.ndarray]"]
"""Weights and bias of a layer of the program, by its number, as its kernel has them."""


class RefusedError(Exception):
    """This layer cannot be a step; the message says why."""


@dataclass(slots=True, eq=False)
class Area:
    """One value's memory. ``border``: zeros above, left of, below and right of each image.

    ``is_dense``: others read or write it as it is, so it can have no border. ``stride``: floats
    from an image's to the next one's; 0: they lie side by side.
    """

    place: Place
    index: int
    height: int
    width: int
    channels: int
    is_dense: bool = False
    border: tuple[int, int, int, int] = (0, 0, 0, 0)
    offset: int = 0
    stride: int = 0

    @property
    def image_floats(self) -> int:
        top, left, bottom, right = self.border
        return (self.height + top + bottom) * (self.width + left + right) * self.channels

    @property
    def image_stride(self) -> int:
        return self.stride or self.image_floats

    def entry(self) -> TensorEntry:
        top, left, _, right = self.border
        column = self.channels
        row = (self.width + left + right) * column
        return TensorEntry(
            *(self.place, self.index, self.offset + top * row + left * column),
            *(self.image_stride, row, column, 1),
            *(self.height, self.width, self.channels, 0),
        )


@dataclass(frozen=True, slots=True)
class View:
    """A value: an area seen as ``sizes``, the shape without the batch.

    ``planar``: it lies as ONNX has it, channel by channel, which only copies can read.
    """

    area: Area
    sizes: tuple[int, ...]
    planar: bool = False

    def entry(self) -> TensorEntry:
        if not self.planar:
            height, width, channels = geometry(self.sizes)
            area = self.area
            if (area.height, area.width, area.channels) == (height, width, channels):
                return area.entry()
            entry = TensorEntry(area.place, area.index, area.offset, area.image_stride)
            entry.row, entry.column, entry.channel = width * channels, channels, 1
        else:
            channels, height, width = self.sizes
            entry = TensorEntry(self.area.place, self.area.index, self.area.offset)
            entry.image, entry.row = self.area.image_stride, width
            entry.column, entry.channel = 1, height * width
        entry.height, entry.width, entry.channels = height, width, channels
        return entry


def geometry(sizes: Sequence[int]) -> tuple[int, int, int]:
    """Height, width and channels of a value of these sizes."""
    if not sizes:
        return 1, 1, 1
    if len(sizes) == 3:
        return sizes[1], sizes[2], sizes[0]
    return (1 if len(sizes) == 1 else sizes[0]), 1, sizes[-1]


@dataclass(frozen=True, slots=True)
class Step:
    """``weights`` and ``bias``: float32, C-contiguous, as ``network.h`` says.

    ``member``: of a LAYER, the number of the program's layer whose own they are; ``unit`` its kind
    (``layer.h``). They are given by ``Sketch.bound``.
    """

    kind: Kind
    source: View
    target: View
    second: View | None = None
    activation: Activation = NO_ACTIVATION
    scale: float = 1.0
    shift: float = 0.0
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    before: tuple[int, int] = (0, 0)
    counts_padding: bool = False
    weights: np.ndarray | None = None
    bias: np.ndarray | None = None
    member: int = -1
    unit: int = 0

    def bound(self, weights: np.ndarray, bias: np.ndarray) -> Step:
        return dataclasses.replace(self, weights=weights, bias=bias)

    def entry(self) -> StepEntry:
        entry = StepEntry(
            *(self.kind, ACTIVATIONS[self.activation.attribute], self.second is not None),
            *(self.counts_padding, *(*self.activation.scalars, 0.0, 0.0)[:2]),
            *(self.scale, self.shift, self.source.entry()),
        )
        if self.second is not None:
            entry.second = self.second.entry()
        entry.target = self.target.entry()
        entry.kernel[:], entry.stride[:] = self.kernel, self.strides
        entry.dilation[:], entry.before[:] = self.dilations, self.before
        pointer = ctypes.POINTER(ctypes.c_float)
        if self.weights is not None:
            entry.weights = self.weights.ctypes.data_as(pointer)
        if self.bias is not None:
            entry.bias = self.bias.ctypes.data_as(pointer)
        entry.unit = self.unit
        return entry


@dataclass(frozen=True, slots=True)
class Steps:
    """What the executor makes a network of, with ``floats`` of scratch memory an image.

    ``packed``: the weights as it reads them; None: they are where ``entries`` point to, and are
    copied, but for ``borrowed``, those of LAYERs.
    """

    entries: ctypes.Array[StepEntry]
    floats: int
    packed: np.ndarray | None = None
    borrowed: tuple[np.ndarray | None, ...] = ()

    def network(self, executor: Library) -> int:
        """Its address; these steps must outlive it. Raises MemoryError."""
        return executor.new_network(self.entries, self.floats, self.packed)


@dataclass(slots=True)
class Sketch:
    """Values by name, and the steps so far. All values have the first dimension ``batch``.

    ``integers``: names of int64 values. ``image_ns``, ``call_ns``: predicted time of an image, and
    of what a call costs whatever the batch, on one thread.
    """

    batch: Dimension
    values: dict[str, View] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    areas: list[Area] = field(default_factory=list)
    integers: set[str] = field(default_factory=set)
    image_ns: float = 0.0
    call_ns: float = 0.0

    def add_input(self, name: str, index: int, sizes: tuple[int, ...], planar: bool) -> View:
        """An input of the run. Feature maps lie channels-last unless ``planar``; the rest does
        not care.
        """
        height, width, channels = geometry(sizes)
        area = Area(Place.INPUT, index, height, width, channels, is_dense=True)
        is_map = len(sizes) == 3 and channels > 1 and height * width > 1
        view = self.values[name] = View(area, sizes, planar and is_map)
        return view

    def value(self, name: str, border: tuple[int, int, int, int] = (0, 0, 0, 0)) -> View:
        """The value, channels-last, with at least this border of zeros; copied if need be."""
        view = self.values[name]
        is_seen_otherwise = geometry(view.sizes) != (
            view.area.height,
            view.area.width,
            view.area.channels,
        )
        if view.planar or (any(border) and (view.area.is_dense or is_seen_otherwise)):
            copied = self.new_view(view.sizes)
            self.steps.append(Step(Kind.COPY, view, copied))
            view = self.values[name] = copied
        if any(border):
            pairs = zip(view.area.border, border, strict=True)
            view.area.border = tuple(max(pair) for pair in pairs)  # type: ignore[assignment]
        return view

    def flat(self, name: str) -> View:
        """The value, channels-last, without a border; copied if need be."""
        view = self.value(name)
        if any(view.area.border):
            copied = self.new_view(view.sizes)
            self.steps.append(Step(Kind.COPY, view, copied))
            view = copied
        view.area.is_dense = True
        return view

    def dense(self, name: str) -> View:
        """The value row-major in memory without a border, planar or not; copied if need be."""
        view = self.values[name]
        height, width, channels = geometry(view.sizes)
        is_row_major = view.planar or channels == 1 or height * width == 1 or len(view.sizes) < 3
        if is_row_major and not any(view.area.border):
            view.area.is_dense = True
            return view
        made = self.new_view(view.sizes)
        made.area.is_dense = True
        made = View(made.area, view.sizes, planar=len(view.sizes) == 3)
        self.steps.append(Step(Kind.COPY, view, made))
        return made

    def new_view(self, sizes: tuple[int, ...]) -> View:
        area = Area(Place.SCRATCH, 0, *geometry(sizes))
        self.areas.append(area)
        return View(area, sizes)

    def make_output(self, name: str, index: int) -> View:
        """Let the value be output ``index`` of the run: a view of all its area, without border.

        It lies row-major if ``planar`` or of rank 3 and less, else channels-last.
        """
        view = self.values[name]
        if view.area.place is not Place.SCRATCH or any(view.area.border):
            copied = self.new_view(view.sizes)
            self.steps.append(Step(Kind.COPY, view, copied))
            view = copied
        view.area.place, view.area.index, view.area.is_dense = Place.OUTPUT, index, True
        return view

    def compiled(self) -> Steps:
        """Valid as long as the sketch. Precondition: LAYERs are bound."""
        floats = self._place()
        entries = [step.entry() for step in self.steps]
        borrowed = [
            array
            for step in self.steps
            if step.kind is Kind.LAYER
            for array in (step.weights, step.bias)
        ]
        return Steps((StepEntry * len(entries))(*entries), floats, None, tuple(borrowed))

    def large_layers(self) -> frozenset[int]:
        """Layers of the program that are LAYER steps: their weights are those of their kernels."""
        return frozenset(step.member for step in self.steps if step.kind is Kind.LAYER)

    def bound(self, weights_of: WeightsOf) -> Sketch:
        """With the weights of its LAYERs."""
        steps = [
            step.bound(*weights_of(step.member)) if step.kind is Kind.LAYER else step
            for step in self.steps
        ]
        return dataclasses.replace(self, steps=steps)

    def _place(self) -> int:
        """Give scratch areas their offsets within an image's; floats of an image."""
        offset = 0
        for area in self.areas:
            if area.place is Place.SCRATCH:
                area.offset = offset
                offset += (area.image_floats + 31) // 16 * 16
        for area in self.areas:
            if area.place is Place.SCRATCH:
                area.stride = offset
        return offset
