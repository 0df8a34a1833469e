"""What a loaded program accepts as an input: the check before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from brisk.errors import InvalidRequestError
from brisk.graph.program import UNKNOWN_TYPE, ContainerKind, ValueType, Variable
from brisk.solutions.base import Value
from brisk.solutions.values import TORCH_DTYPES, dtype_name


@dataclass(frozen=True, slots=True)
class InputSlot:
    """Where an input's value goes in a frame, and what it has to be."""

    index: int
    variable: Variable
    is_required: bool
    dtype: torch.dtype | None = field(init=False, compare=False)
    rank: int = field(init=False, compare=False)
    fixed: tuple[tuple[int, int], ...] = field(init=False, compare=False)
    """What a tensor must have to be accepted at a glance: its dtype, rank, and sizes by axis."""

    def __post_init__(self) -> None:
        declared = self.variable.type
        is_plain = declared.container is ContainerKind.TENSOR and declared.shape is not None
        shape = declared.shape or ()
        fixed = [(axis, size) for axis, size in enumerate(shape) if isinstance(size, int)]
        dtype = TORCH_DTYPES.get(declared.dtype or "") if is_plain else None
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "rank", len(shape))
        object.__setattr__(self, "fixed", tuple(fixed))

    @classmethod
    def captured(cls, index: int, name: str) -> InputSlot:
        """The slot of a value that a body reads from outside; its maker has checked it."""
        return cls(index, Variable(name, UNKNOWN_TYPE), True)

    def unchecked(self) -> InputSlot:
        """The same slot for a body, whose declared types are hints: a carried value may grow."""
        return InputSlot(self.index, Variable(self.variable.name, UNKNOWN_TYPE), self.is_required)

    def accept(self, value: Value, device: torch.device) -> Value:
        """The value on the program's device.

        Raises InvalidRequestError where it is not of the declared container, dtype or shape.
        """
        if self._is_plain(value) and value.device == device:  # type: ignore[union-attr]
            return value
        self._check(value)
        return move(value, device)

    def _is_plain(self, value: Value) -> bool:
        """The check of a tensor that fits, in a microsecond less; others are to be explained."""
        if type(value) is not torch.Tensor or value.dtype is not self.dtype:
            return False
        shape = value.shape
        if len(shape) != self.rank:
            return False
        for axis, size in self.fixed:  # noqa: SIM110  # a generator would cost as much again
            if shape[axis] != size:
                return False
        return True

    def _check(self, value: Value) -> None:
        declared = self.variable.type
        if declared.dtype is not None and declared.container is ContainerKind.TENSOR:
            self._check_tensor(value, declared)
        elif declared.container is ContainerKind.SEQUENCE and not isinstance(value, list):
            raise InvalidRequestError(f"input '{self.variable.name}': expected a sequence")

    def _check_tensor(self, value: Value, declared: ValueType) -> None:
        if value is None or isinstance(value, list):
            kind = "nothing" if value is None else "a sequence"
            raise InvalidRequestError(
                f"input '{self.variable.name}': expected a tensor, got {kind}"
            )
        name = dtype_name(value)
        shape = tuple(value.shape)
        fits = declared.shape is None or (
            len(shape) == len(declared.shape)
            and all(
                not isinstance(size, int) or size == actual
                for size, actual in zip(declared.shape, shape, strict=True)
            )
        )
        if name != declared.dtype or not fits:
            raise InvalidRequestError(
                f"input '{self.variable.name}': expected {describe(declared)}, "
                f"got {describe(ValueType(name, shape))}"
            )


def describe(declared: ValueType) -> str:
    """``float32 [N, 3, 224, 224]``, for messages."""
    if declared.shape is None:
        return f"{declared.dtype} of any shape"
    sizes = ", ".join("?" if size is None else str(size) for size in declared.shape)
    return f"{declared.dtype} [{sizes}]"


def move(value: Value, device: torch.device) -> Value:
    """The value on ``device``; itself where it is there, or is nothing that torch holds."""
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device)
    if isinstance(value, list):
        return [move(item, device) for item in value]
    return value
