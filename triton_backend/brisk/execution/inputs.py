"""What a loaded program accepts as an input: the check before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from brisk.errors import InvalidRequestError
from brisk.graph.program import UNKNOWN_TYPE, ContainerKind, ValueType, Variable
from brisk.segments.program import describe_type
from brisk.solutions.values import Value, dtype_name


@dataclass(frozen=True, slots=True)
class InputSlot:
    """Where an input's value goes in a frame, and what it has to be."""

    index: int
    variable: Variable
    is_required: bool

    def unchecked(self) -> InputSlot:
        """The same slot for a body, whose declared types are hints: a carried value may grow."""
        return InputSlot(self.index, Variable(self.variable.name, UNKNOWN_TYPE), self.is_required)

    def accept(self, value: Value, device: torch.device) -> Value:
        """The value on the program's device.

        Raises InvalidRequestError where it is not of the declared container, dtype or shape.
        """
        declared = self.variable.type
        if declared.container is ContainerKind.TENSOR and declared.dtype is not None:
            if value is None or isinstance(value, list):
                kind = "nothing" if value is None else "a sequence"
                raise self._refusal(f"a tensor, got {kind}")
            if dtype_name(value) != declared.dtype or not _fits(value.shape, declared):
                given = ValueType(dtype_name(value), tuple(value.shape))
                raise self._refusal(f"{describe_type(declared)}, got {describe_type(given)}")
        elif declared.container is ContainerKind.SEQUENCE and not isinstance(value, list):
            raise self._refusal("a sequence")
        return move(value, device)

    def _refusal(self, expected: str) -> InvalidRequestError:
        return InvalidRequestError(f"input '{self.variable.name}': expected {expected}")


def _fits(shape: tuple[int, ...], declared: ValueType) -> bool:
    if declared.shape is None:
        return True
    return len(shape) == len(declared.shape) and all(
        not isinstance(size, int) or size == actual
        for size, actual in zip(declared.shape, shape, strict=True)
    )


def move(value: Value, device: torch.device) -> Value:
    """The value on ``device``; itself where it is there, or is nothing that torch holds."""
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device)
    if isinstance(value, list):
        return [move(item, device) for item in value]
    return value
