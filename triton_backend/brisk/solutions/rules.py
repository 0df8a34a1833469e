"""Families made of rules: one operator, one torch expression, and when it is the right one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brisk.graph.program import ContainerKind
from brisk.solutions.base import Kernel, LoadBody, Operand, Problem, Solution
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

Check = Callable[[Problem], "str | None"]
"""The reason why a rule does not apply; None where it does."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one operator is computed.

    ``since``: the first version of the operator whose definition this is.
    """

    load: Callable[[Problem], Kernel]
    check: Check
    since: int = 1


class Family(Solution):
    """The rules of some operators of one domain, under one name."""

    def __init__(self, name: str, rules: Mapping[str, Rule], domain: str = "") -> None:
        self.name = name
        self.operators = {(domain, operator) for operator in rules}
        self._rules = rules

    def check(self, problem: Problem) -> str | None:
        rule = self._rules[problem.operator]
        if problem.version < rule.since:
            return (
                f"version {problem.version} of the operator means something else than version "
                f"{rule.since}"
            )
        return rule.check(problem)

    def load(self, problem: Problem, load_body: LoadBody) -> Kernel:
        return self._rules[problem.operator].load(problem)


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

    def check(problem: Problem) -> str | None:
        for each in checks:
            reason = each(problem)
            if reason is not None:
                return reason
        return None

    return check


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
    problem: Problem, function: Callable[..., Value], numbers: Collection[int] = ()
) -> Kernel:
    """A kernel with one output that calls ``function`` with every main operand in order.

    Constants are bound now, as tensors on the device, None where left out. Operands at the
    positions ``numbers`` arrive as Python numbers or sequences of them.
    """
    bound = [
        problem.constant(position) if position in numbers else constant_tensor(problem, position)
        for position in range(len(problem.operands))
    ]
    return bind_constants(problem, function, bound, numbers)


def bind_constants(
    problem: Problem,
    function: Callable[..., Value],
    bound: Sequence[Any],
    numbers: Collection[int] = (),
) -> Kernel:
    """As ``bind``, with the constants in the form that they have in ``bound``."""
    dynamic = [position for position in range(len(bound)) if problem.is_dynamic(position)]
    if not any(position in numbers for position in dynamic):
        if len(dynamic) == len(bound):
            return lambda *values: (function(*values),)
        if dynamic == [0]:
            rest = tuple(bound[1:])
            return lambda x: (function(x, *rest),)

    def general(*values: Any) -> Sequence[Value]:
        arguments = list(bound)
        for position, value in zip(dynamic, values, strict=True):
            arguments[position] = value.tolist() if position in numbers else value
        return (function(*arguments),)

    return general


def plain(function: Callable[..., Value], *numbers: int) -> Callable[[Problem], Kernel]:
    """A loader that binds a function which needs no attribute."""
    return lambda problem: bind(problem, function, numbers)
