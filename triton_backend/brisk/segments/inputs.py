"""What a model accepts as an input: the check before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from brisk.errors import InvalidRequestError
from brisk.graph.files.element_types import name_of_dtype
from brisk.graph.program import ValueType, Variable
from brisk.segments.values import Value


@dataclass(frozen=True, slots=True)
class InputCheck:
    """Of one input of a model."""

    variable: Variable
    rank: int = field(init=False, compare=False)
    fixed: tuple[tuple[int, int], ...] = field(init=False, compare=False)
    """Sizes by axis that a tensor must have."""

    def __post_init__(self) -> None:
        shape = self.variable.type.shape
        fixed = [(axis, size) for axis, size in enumerate(shape or ()) if isinstance(size, int)]
        object.__setattr__(self, "rank", -1 if shape is None else len(shape))
        object.__setattr__(self, "fixed", tuple(fixed))

    @property
    def is_required(self) -> bool:
        return not self.variable.optional

    def accept(self, value: Value) -> Value:
        """The value, C-contiguous; Triton has no tensors of rank 0: a scalar comes as ``[1]``.

        Raises InvalidRequestError where it is not of the declared element type or shape.
        """
        declared = self.variable.type
        if not isinstance(value, np.ndarray):
            raise InvalidRequestError(f"input '{self.variable.name}': expected a tensor")
        if self.rank == 0 and value.shape == (1,):
            value = value.reshape(())
        if name_of_dtype(value.dtype) != declared.dtype or not self._fits(value.shape):
            given = ValueType(name_of_dtype(value.dtype), tuple(value.shape))
            raise InvalidRequestError(
                f"input '{self.variable.name}': expected {describe(declared)}, "
                f"got {describe(given)}"
            )
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        if self.rank < 0:
            return True
        if len(shape) != self.rank:
            return False
        for axis, size in self.fixed:  # noqa: SIM110  # a generator would cost as much again
            if shape[axis] != size:
                return False
        return True


def describe(declared: ValueType) -> str:
    """``float32 [N, 3, 224, 224]``, for messages."""
    if declared.shape is None:
        return f"{declared.dtype} of any shape"
    sizes = ", ".join("?" if size is None else str(size) for size in declared.shape)
    return f"{declared.dtype} [{sizes}]"
