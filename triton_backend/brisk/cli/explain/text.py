"""Types, sizes and variables in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from brisk.graph.program import ValueType, Variable

MOST_VARIABLES = 6
"""Inputs, and outputs, that are told one by one unless all are asked for."""


def type_text(value: ValueType) -> str:
    """``float32[batch, 3, 224, 224]``; ``?`` for what is not known."""
    shape = (
        "?"
        if value.shape is None
        else ", ".join("?" if d is None else str(d) for d in value.shape)
    )
    container = "" if value.container.value == "tensor" else f"{value.container.value} of "
    return f"{container}{value.dtype or '?'}[{shape}]"


def variables_text(kind: str, variables: Sequence[Variable], *, every: bool) -> Iterator[str]:
    """A line each, ``kind`` before it."""
    told = variables if every else variables[:MOST_VARIABLES]
    for variable in told:
        optional = " optional" * variable.optional
        yield f"  {kind} {variable.name}: {type_text(variable.type)}{optional}"
    if len(told) < len(variables):
        yield f"  and {len(variables) - len(told)} {kind}s more (--all)"


def count_text(count: int, word: str) -> str:
    return f"{count} {word}{'s'[: count != 1]}"


def bytes_text(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 10_000 else f"{size} bytes"
