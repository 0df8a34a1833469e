"""Inputs and outputs of models as JSON."""

from __future__ import annotations

from typing import Any

from brisk.graph.program import ContainerKind, ValueType, Variable

_KINDS = {kind.value: kind for kind in ContainerKind}


def write_variable(variable: Variable) -> list[Any]:
    kind = variable.type
    shape = None if kind.shape is None else list(kind.shape)
    return [variable.name, [kind.dtype, shape, kind.container.value], variable.optional]


def read_variable(record: Any) -> Variable:
    """Raises KeyError, TypeError or ValueError where ``write_variable`` made no such record."""
    name, (dtype, shape, container), optional = record
    kind = ValueType(dtype, None if shape is None else tuple(shape), _KINDS[container])
    return Variable(name, kind, bool(optional))
