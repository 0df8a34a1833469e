"""Families made of rules: one operator, one torch expression, and when it is the right one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from brisk.graph.program import ContainerKind
from brisk.solutions.base import (
    APPLIES,
    Applicability,
    Kernel,
    LoadContext,
    Operand,
    Problem,
    Solution,
    Value,
    refused,
)
from brisk.solutions.values import TORCH_DTYPES, from_numpy

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


class RuleFamily(Solution):
    """A family whose operators each have one rule."""

    rules: ClassVar[Mapping[tuple[str, str], Rule]]

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset(self.rules)

    def check(self, problem: Problem) -> Applicability:
        rule = self.rules.get((problem.domain, problem.operator))
        if rule is None:
            return refused(f"no rule for {problem.operator}")
        if problem.version < rule.since:
            return refused(
                f"version {problem.version} of the operator means something else than version "
                f"{rule.since}"
            )
        reason = rule.check(problem)
        return APPLIES if reason is None else refused(reason)

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        return self.rules[problem.domain, problem.operator].load(problem)


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


def refuse_operand(operand: Operand, allowed: Collection[str]) -> str | None:
    """Why ``operand`` is not a tensor of an allowed dtype; None where it is."""
    if operand.type.container is not ContainerKind.TENSOR:
        return f"'{operand.name}' is a {operand.type.container.value}, not a tensor"
    if operand.type.dtype not in allowed:
        return f"'{operand.name}' is {operand.type.dtype or 'of unknown dtype'}"
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


def attribute(problem: Problem, name: str, default: Any) -> Any:
    """An attribute of the main operator, or the default of its definition."""
    return problem.attributes.get(name, default)


def constant(problem: Problem, position: int) -> Any:
    """A constant operand as Python numbers (nested lists); None where absent or dynamic."""
    operand = problem.operand(position)
    if operand is None or operand.constant is None:
        return None
    return operand.constant.tolist()


def single(number: Any) -> Any:
    """The number of a tensor of one element that came as Python numbers, of rank 0 or 1."""
    while isinstance(number, (list, tuple)):
        (number,) = number
    return number


def is_dynamic(problem: Problem, position: int) -> bool:
    operand = problem.operand(position)
    return operand is not None and operand.constant is None


def rank(problem: Problem, position: int = 0) -> int | None:
    """The rank of an operand where it is known."""
    operand = problem.operand(position)
    return None if operand is None else operand.type.rank


def bind(
    problem: Problem, function: Callable[..., Value], numbers: Collection[int] = ()
) -> Kernel:
    """A kernel with one output that calls ``function`` with every main operand in order.

    Constants are bound now, as tensors on the device, None where left out. Operands at the
    positions ``numbers`` arrive as Python numbers or sequences of them.
    """
    operands = problem.operands
    dynamic = [i for i, operand in enumerate(operands) if operand and operand.constant is None]
    bound = [_bound(operand, i in numbers, problem.device) for i, operand in enumerate(operands)]
    if not any(position in numbers for position in dynamic):
        kernel = _bind_tensors(function, bound, dynamic)
        if kernel is not None:
            return kernel

    def general(*values: Any) -> Sequence[Value]:
        arguments = list(bound)
        for position, value in zip(dynamic, values, strict=True):
            arguments[position] = value.tolist() if position in numbers else value
        return (function(*arguments),)

    return general


def _bind_tensors(
    function: Callable[..., Value], bound: Sequence[Any], dynamic: Sequence[int]
) -> Kernel | None:
    """The kernel without a loop over its arguments, for the orders that are common."""
    if len(dynamic) == len(bound):
        if len(bound) == 1:
            return lambda x: (function(x),)
        if len(bound) == 2:
            return lambda x, y: (function(x, y),)
        return lambda *values: (function(*values),)
    if dynamic == [0]:
        if len(bound) == 2:
            second = bound[1]
            return lambda x: (function(x, second),)
        rest = tuple(bound[1:])
        return lambda x: (function(x, *rest),)
    if dynamic == [1] and len(bound) == 2:
        first = bound[0]
        return lambda y: (function(first, y),)
    return None


def _bound(operand: Operand | None, as_numbers: bool, device: torch.device) -> Any:
    if operand is None or operand.constant is None:
        return None
    if not as_numbers:
        return from_numpy(operand.constant, device)
    numbers = operand.constant.tolist()
    return tuple(numbers) if isinstance(numbers, list) else numbers
