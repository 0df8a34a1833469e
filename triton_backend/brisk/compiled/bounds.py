"""Whether a table of steps stays within its memory: the executor itself compares nothing.

Every reader of an artefact's table asks first. All is computed in float64, exact for whatever fits
memory, where an absurd field's product is merely large.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from brisk.compiled.table import ACTIVATIONS, Kind, Place, StepEntry

MOST_IMAGES = 1 << 16
_MOST_FLOATS = float(1 << 40)
_MOST_INTEGER = float((1 << 31) - 1)
_MOST_DEPTHWISE_TAPS = 128
"""``MOST_TAPS`` of ``source/depthwise.h``: their places lie on the stack."""

_LARGE_WINDOW = 1 << 16
"""Taps of a pool that are no more than its source has positions, or this many."""

_UNITS = (0, 2, 4)
"""Of a LAYER: see ``source/layer.h``."""

Column: TypeAlias = np.ndarray
"""Float64, or bool, [steps]."""

_FIELDS = [field for field in StepEntry._fields_ if field[0] not in ("weights", "bias")]
_STEP = np.dtype(
    {
        "names": [name for name, _ in _FIELDS],
        "formats": [np.dtype(kind) for _, kind in _FIELDS],
        "offsets": [getattr(StepEntry, name).offset for name, _ in _FIELDS],
        "itemsize": ctypes.sizeof(StepEntry),
    }
)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """``source/network.h``'s, a column for each field."""

    place: Column
    index: Column
    offset: Column
    image: Column
    row: Column
    column: Column
    channel: Column
    height: Column
    width: Column
    channels: Column

    @classmethod
    def of(cls, records: np.ndarray) -> _Tensor:
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(records[name].astype(np.float64) for name in names))

    @property
    def elements(self) -> Column:
        return self.height * self.width * self.channels

    def reach(self, height: Column, width: Column, channels: Column) -> Column:
        """Floats from the first one of so many rows, columns and channels to behind the last."""
        across = (height - 1) * self.row + (width - 1) * self.column
        return across + (channels - 1) * self.channel + 1

    @property
    def is_dense(self) -> Column:
        """Whether its elements lie side by side: channels last, or channel by channel."""
        last = (self.channel == 1) & (self.column == self.channels)
        last &= self.row == self.width * self.channels
        planar = (self.column == 1) & (self.row == self.width)
        return last | (planar & (self.channel == self.height * self.width))


def check_steps(
    steps: ctypes.Array[StepEntry],
    floats: int,
    images: int,
    inputs: Sequence[int],
    outputs: Sequence[int],
    block: int,
) -> None:
    """That a network of ``steps`` reads and writes nothing but its memory, for 1 to ``images``
    images, comes to an end, and writes all of its outputs.

    ``floats``: of scratch memory for an image. ``inputs``, ``outputs``: floats of an image of
    each, an int64 being two. ``block``: of the library. The steps' weights are not looked at.
    Raises ValueError that names the step and what is wrong with it.
    """
    if not len(steps) or not 1 <= images <= MOST_IMAGES or not 0 <= floats < _MOST_FLOATS:
        raise ValueError(f"{len(steps)} steps for {images} images of {floats} floats each")
    table = np.frombuffer(memoryview(steps).cast("B"), _STEP)
    kind = table["kind"]

    def refuse_unless(holds: Column, what: str) -> None:
        if not holds.all():
            index = int(np.argmin(holds))
            raise ValueError(f"step {index} of kind {kind[index]}: {what}")

    def is_one_of(*kinds: Kind) -> Column:
        found = np.zeros(len(kind), bool)
        for each in kinds:
            found |= kind == each
        return found

    refuse_unless((kind >= 0) & (kind < len(Kind)), "there is no such kind")
    activation = table["activation"]
    refuse_unless((activation >= 0) & (activation < len(ACTIVATIONS)), "an unknown activation")
    source, second, target = (_Tensor.of(table[name]) for name in ("source", "second", "target"))
    has_second = table["has_second"] != 0
    is_copy, is_wide = is_one_of(Kind.COPY), is_one_of(Kind.ARGUMENT_MAXIMUM)
    is_layer, is_convolution = is_one_of(Kind.LAYER), is_one_of(Kind.CONVOLUTION)
    room = np.where(is_wide, 2.0, 1.0)

    kernel, stride, dilation, before = (
        table[name].astype(np.float64).T for name in ("kernel", "stride", "dilation", "before")
    )
    for axis, (side, result) in enumerate(
        ((source.height, target.height), (source.width, target.width))
    ):
        refuse_unless(
            (kernel[axis] >= 1)
            & (stride[axis] >= 1)
            & (dilation[axis] >= 1)
            & (before[axis] >= 0),
            "a window without size, or that moves backwards",
        )
        last = result * stride[axis] + kernel[axis] * dilation[axis] + before[axis]
        refuse_unless(last < _MOST_INTEGER, "a window that is too far away")
        refuse_unless((result + 1) * (side + 1) < _MOST_INTEGER, "sides that are too long")
    taps = kernel[0] * kernel[1]
    refuse_unless(
        ~is_one_of(Kind.DEPTHWISE) | (taps <= _MOST_DEPTHWISE_TAPS), "more taps than have room"
    )
    window = np.maximum(source.height * source.width, _LARGE_WINDOW)
    refuse_unless(is_convolution | (taps <= window), "a window larger than its source")
    refuse_unless(
        taps * (source.channels + 64) * (target.channels + 64) < _MOST_INTEGER,
        "weights that are too many",
    )

    memory = (float(floats), [float(size) for size in inputs], [float(size) for size in outputs])
    limits = []
    for tensor, is_used, factor in (
        (source, None, None),
        (second, has_second, None),
        (target, None, room),
    ):
        limits.append(_limits(tensor, *memory))
        unused = np.zeros(len(kind), bool) if is_used is None else ~is_used
        refuse_unless(unused | (limits[-1] > 0), "memory that there is none of")
        for field in (tensor.offset, tensor.row, tensor.column, tensor.channel):
            refuse_unless(unused | ((field >= 0) & (field < _MOST_FLOATS)), "a backward step")
        for field in (tensor.height, tensor.width, tensor.channels):
            refuse_unless(unused | (field >= 1), "an empty value")
        whole = limits[-1] if factor is None else limits[-1] / factor
        refuse_unless(unused | (tensor.image == whole), "images that lie elsewhere")
        refuse_unless(unused | (tensor.elements <= whole), "a value larger than its memory")
    refuse_unless(target.elements * images < _MOST_INTEGER, "a value that is too large")
    refuse_unless(source.elements * images < _MOST_INTEGER, "a value that is too large")
    refuse_unless(target.place != Place.INPUT, "it would write into an input")
    refuse_unless(
        is_copy | ((source.channel == 1) & ((target.channel == 1) | is_wide)),
        "channels that lie apart",
    )
    refuse_unless(~is_one_of(Kind.GATE) | has_second, "a gate without factors")

    same_sides = (source.height == target.height) & (source.width == target.width)
    refuse_unless(~(is_copy | is_wide) | same_sides, "another size than its source")
    same_channels = is_one_of(
        *(Kind.COPY, Kind.DEPTHWISE, Kind.MAXIMUM_POOL, Kind.AVERAGE_POOL, Kind.ADAPTIVE_POOL)
    )
    refuse_unless(
        ~same_channels | (source.channels == target.channels), "other channels than its source"
    )
    refuse_unless(
        ~is_layer | (source.is_dense & target.is_dense & (source.channel == 1)),
        "a large layer of values that do not lie side by side",
    )
    is_plain = (taps == 9) & (kernel[0] == 3) & (stride.max(0) == 1) & (dilation.max(0) == 1)
    unit = table["unit"]
    refuse_unless(~is_layer | np.isin(unit, _UNITS), "a large layer of an unknown unit")
    refuse_unless(
        ~is_layer | (unit == 0) | (is_plain & (source.channels % block == 0)),
        "a large layer that its unit does not compute",
    )

    positions = (target.height, target.width, target.channels)
    own = (source.height, source.width, source.channels)
    first = source.offset - is_convolution * (before[0] * source.row + before[1] * source.column)
    is_by_position = is_one_of(Kind.POINTWISE, Kind.GATE, Kind.SOFTMAX)
    read = np.where(is_by_position, source.reach(*positions), source.reach(*own))
    farthest = [
        (side - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1
        for axis, side in enumerate(positions[:2])
    ]
    read = np.where(is_convolution, source.reach(farthest[0], farthest[1], source.channels), read)
    refuse_unless(
        (first >= 0) & (first + read <= limits[0]), "it would read outside of its source"
    )
    added = second.reach(*positions)
    added = np.where(is_one_of(Kind.GATE), target.channels, added)
    added = np.where(is_layer, target.elements, added)
    refuse_unless(
        ~has_second | (second.offset + added <= limits[1]), "it would read outside of its second"
    )
    one = np.ones(len(kind))
    written = np.where(is_wide, target.reach(*positions[:2], one), target.reach(*positions))
    refuse_unless(
        target.offset + written * room <= limits[2], "it would write outside of its target"
    )
    whole = (target.place == Place.OUTPUT) & (target.offset == 0) & target.is_dense
    whole &= target.elements * room == limits[2]
    missing = set(range(len(outputs))) - set(target.index[whole].astype(int).tolist())
    if missing:
        raise ValueError(f"no step makes all of output {min(missing)}")


def _limits(
    tensor: _Tensor, scratch: float, inputs: Sequence[float], outputs: Sequence[float]
) -> Column:
    """Floats of an image of the memory that each of a tensor's values lies in; 0: of none."""
    found = np.where(tensor.place == Place.SCRATCH, scratch, 0.0)
    for place, sizes in ((Place.INPUT, inputs), (Place.OUTPUT, outputs)):
        for index, size in enumerate(sizes):
            found = np.where((tensor.place == place) & (tensor.index == index), size, found)
    return found
