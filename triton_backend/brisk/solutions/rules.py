"""Rules: one operator, one torch expression, and the types for which it is the right one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from brisk.graph.canonical import oldest_alike
from brisk.graph.program import ContainerKind
from brisk.solutions.base import Kernel, Operand, Problem, Solution
from brisk.solutions.values import TORCH_DTYPES, Value, from_numpy

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
SIGNED = frozenset({"int8", "int16", "int32", "int64"})
INTEGERS = SIGNED | {"uint8"}
"""Integers that torch computes with; it only stores and moves the wider unsigned ones."""
NUMBERS = FLOATS | INTEGERS
BOOLEAN = frozenset({"bool"})
INDICES = frozenset({"int32", "int64"})
STORED = frozenset(TORCH_DTYPES)
"""Everything torch can hold, and so can view, slice and copy."""
MOVED = NUMBERS | BOOLEAN
"""What every torch data-movement call takes."""

Load: TypeAlias = Callable[[Problem], Kernel]

Check: TypeAlias = Callable[[Problem], "str | None"]
"""The reason why a rule does not apply; None where it does."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one operator is computed, in its newest form."""

    load: Load
    check: Check


def solution_of(name: str, rule: Rule) -> Solution:
    """``rule`` as a solution; refuses nodes that are kept in an older form."""

    def check(problem: Problem) -> str | None:
        version, oldest = problem.node.version, oldest_alike(problem.operator)
        if not problem.node.domain and version < oldest:
            return f"version {version} of the operator means something else than version {oldest}"
        return rule.check(problem)

    return Solution(name, check, lambda problem, _: rule.load(problem))


# Checks.


def takes(*dtypes: Collection[str]) -> Check:
    """Tensors only, operand ``i`` of a dtype in ``dtypes[i]``; the last set goes for the rest."""

    def check(problem: Problem) -> str | None:
        for position, operand in enumerate(problem.operands):
            allowed = dtypes[min(position, len(dtypes) - 1)]
            reason = operand and refuse_operand(operand, allowed)
            if reason:
                return reason
        return None

    return check


def anything(_: Problem) -> None:
    """The check of a rule that always applies."""


def refuse_operand(operand: Operand, allowed: Collection[str]) -> str | None:
    """Why ``operand`` is not a tensor of an allowed dtype; None where it is."""
    if operand.type.container is not ContainerKind.TENSOR:
        return f"'{operand.name}' is a {operand.type.container.value}, not a tensor"
    if operand.type.dtype not in allowed:
        return f"'{operand.name}' is {operand.type.dtype or 'of unknown dtype'}"
    return None


def refuse_mixed_floats(problem: Problem) -> str | None:
    """Why the operands do not have one floating dtype in common; None where they do."""
    dtypes = {operand.type.dtype for operand in problem.operands if operand is not None}
    if len(dtypes) != 1 or not dtypes <= FLOATS:
        return f"dtypes {sorted(map(str, dtypes))}, one of {', '.join(sorted(FLOATS))} is known"
    return None


def both(*checks: Check) -> Check:
    """All of ``checks``, the first refusal counts."""
    return lambda problem: next(filter(None, (each(problem) for each in checks)), None)


# Loading.


def single(number: Any) -> Any:
    """The number of a tensor of one element that came as Python numbers, of rank 0 or 1."""
    while isinstance(number, (list, tuple)):
        (number,) = number
    return number


def constant_tensor(problem: Problem, position: int) -> Any:
    """The constant at a position, on the device; None where it is left out or not constant."""
    operand = problem.operand(position)
    if operand is None or operand.constant is None:
        return None
    return from_numpy(operand.constant, problem.device)


def bind(
    problem: Problem,
    function: Callable[..., Value],
    numbers: Collection[int] = (),
    bound: Sequence[Any] | None = None,
) -> Kernel:
    """A kernel with one output that calls ``function`` with every operand in order.

    Constants are bound now, as tensors on the device, None where left out, or as they are in
    ``bound``. Operands at the positions ``numbers`` arrive as Python numbers or sequences of them.
    """
    count = len(problem.operands)
    constants: Sequence[Any] = bound or [
        problem.constant(place) if place in numbers else constant_tensor(problem, place)
        for place in range(count)
    ]
    dynamic = [place for place in range(count) if problem.is_dynamic(place)]
    if not any(place in numbers for place in dynamic):
        if len(dynamic) == count:
            return lambda *values: (function(*values),)
        if dynamic == [0]:
            rest = tuple(constants[1:])
            return lambda x: (function(x, *rest),)

    def general(*values: Any) -> Sequence[Value]:
        arguments = list(constants)
        for place, value in zip(dynamic, values, strict=True):
            arguments[place] = value.tolist() if place in numbers else value
        return (function(*arguments),)

    return general


def calls(function: Callable[..., Any], *numbers: int, **defaults: Any) -> Load:
    """A loader that binds ``function``, which takes the attributes in ``defaults`` by name.

    ``numbers``: positions of operands that it takes as Python numbers.
    """

    def load(problem: Problem) -> Kernel:
        given = {name: problem.attribute(name, value) for name, value in defaults.items()}
        return bind(problem, partial(function, **given) if given else function, numbers)

    return load


def several(load: Load) -> Load:
    """``load``, of a function that returns all outputs of its operator."""

    def loaded(problem: Problem) -> Kernel:
        kernel: Any = load(problem)
        return lambda *values: kernel(*values)[0]

    return loaded
