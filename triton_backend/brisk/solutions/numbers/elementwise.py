"""Element-wise arithmetic, comparison and logic on torch, with ONNX's broadcasting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from brisk.solutions.base import Kernel, Problem, Solution, Value
from brisk.solutions.numbers.casting import CASTING
from brisk.solutions.rules import (
    BOOLEAN,
    FLOATS,
    INTEGERS,
    MOVED,
    NUMBERS,
    SIGNED,
    Check,
    Rule,
    RuleFamily,
    attribute,
    bind,
    constant,
    is_dynamic,
    takes,
)
from brisk.solutions.values import from_numpy

_CPU = torch.device("cpu")


def _direct(function: Callable[..., Value]) -> Callable[[Problem], Kernel]:
    return lambda problem: bind(problem, function)


def _single_element(problem: Problem, position: int) -> np.ndarray | None:
    """A constant of one element, without axes, where it cannot raise the result's rank."""
    operand, other = problem.operands[position], problem.operands[1 - position]
    if operand is None or operand.constant is None or operand.constant.size != 1:
        return None
    known = other.type.rank if other is not None else None
    if other is None or other.constant is not None or operand.constant.ndim > (known or 0):
        return None
    return operand.constant.reshape(())


def _arithmetic(function: Callable[..., Any]) -> Callable[[Problem], Kernel]:
    """Binary operator; a constant of one element enters the call as a CPU tensor of rank 0.

    torch reads that in place, on an accelerator too, and in half the time that it takes to
    wrap a Python number.
    """

    def load(problem: Problem) -> Kernel:
        second = _single_element(problem, 1)
        if second is not None:
            right = from_numpy(second, _CPU)
            return lambda x: (function(x, right),)
        first = _single_element(problem, 0)
        if first is not None:
            left = from_numpy(first, _CPU)
            return lambda y: (function(left, y),)
        return bind(problem, function)

    return load


def _divide_integers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Truncates towards zero, as the operator is defined since version 14."""
    return torch.div(x, y, rounding_mode="trunc")


def _load_divide(problem: Problem) -> Kernel:
    operand = problem.operands[0]
    whole = operand is not None and operand.type.dtype in INTEGERS
    return _arithmetic(_divide_integers if whole else torch.div)(problem)


def _load_modulo(problem: Problem) -> Kernel:
    like_c = attribute(problem, "fmod", 0)
    return _arithmetic(torch.fmod if like_c else torch.remainder)(problem)


def _load_power(problem: Problem) -> Kernel:
    """The result has the base's dtype, whatever the exponent's."""
    base, exponent = problem.operands
    assert base is not None
    assert exponent is not None
    single = _single_element(problem, 1)
    if single is not None and single.dtype.kind in "fiu" and base.type.dtype in FLOATS:
        number = single.item()  # for whole and half exponents torch multiplies or takes roots
        return lambda x: (torch.pow(x, number),)
    if base.type.dtype == exponent.type.dtype:
        return bind(problem, torch.pow)
    return bind(problem, lambda x, y: torch.pow(x, y).to(x.dtype))


def _check_power(problem: Problem) -> str | None:
    reason = takes(FLOATS | {"int32", "int64"}, NUMBERS)(problem)
    base, exponent = problem.operands
    if reason or base is None or exponent is None or base.type.dtype in FLOATS:
        return reason
    # numpy's and torch's rounding differ where an integer is raised to a fraction
    return None if exponent.type.dtype in INTEGERS else "an integer to the power of a float"


def _load_shift(problem: Problem) -> Kernel:
    left = attribute(problem, "direction", "LEFT") == "LEFT"
    return bind(problem, torch.bitwise_left_shift if left else torch.bitwise_right_shift)


def _load_is_infinite(problem: Problem) -> Kernel:
    negative = attribute(problem, "detect_negative", 1)
    positive = attribute(problem, "detect_positive", 1)
    if negative and positive:
        return bind(problem, torch.isinf)
    if not negative and not positive:
        return bind(problem, lambda x: torch.zeros_like(x, dtype=torch.bool))
    return bind(problem, torch.isposinf if positive else torch.isneginf)


def _load_clip(problem: Problem) -> Kernel:
    low, high = constant(problem, 1), constant(problem, 2)
    given = [operand for operand in problem.operands[1:] if operand is not None]
    if not given:
        return bind(problem, lambda x, *_: x)
    fixed = all(operand.constant is not None and operand.constant.ndim == 0 for operand in given)
    if fixed and is_dynamic(problem, 0):
        return lambda x: (torch.clamp(x, low, high),)
    return bind(problem, lambda x, low=None, high=None: torch.clamp(x, low, high))


def _variadic(function: Callable[..., torch.Tensor]) -> Callable[[Problem], Kernel]:
    def load(problem: Problem) -> Kernel:
        if len(problem.operands) == 2:
            return bind(problem, function)
        return bind(problem, lambda *values: functools.reduce(function, values))

    return load


def _mean(*values: torch.Tensor) -> torch.Tensor:
    return functools.reduce(torch.add, values) / len(values)


def _sign(x: torch.Tensor) -> torch.Tensor:
    """NaN stays NaN, which ``torch.sign`` alone makes 0."""
    return torch.sign(x) if not x.is_floating_point() else torch.where(x.isnan(), x, x.sign())


def _rules(
    check: Check, functions: Mapping[str, Callable[..., Value]], since: int = 1
) -> dict[str, Rule]:
    return {name: Rule(_direct(function), check, since) for name, function in functions.items()}


_OF_FLOATS: dict[str, Callable[..., Value]] = {
    "Sqrt": torch.sqrt,
    "Exp": torch.exp,
    "Log": torch.log,
    "Erf": torch.erf,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Tan": torch.tan,
    "Asin": torch.asin,
    "Acos": torch.acos,
    "Atan": torch.atan,
    "Sinh": torch.sinh,
    "Cosh": torch.cosh,
    "Tanh": torch.tanh,
    "Asinh": torch.asinh,
    "Acosh": torch.acosh,
    "Atanh": torch.atanh,
    "Ceil": torch.ceil,
    "Floor": torch.floor,
    "Round": torch.round,
    "Reciprocal": torch.reciprocal,
    "IsNaN": torch.isnan,
}

_ARITHMETIC: dict[str, Any] = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul}

_COMPARISONS: dict[str, tuple[Any, frozenset[str]]] = {
    "Equal": (torch.eq, MOVED),
    "Greater": (torch.gt, NUMBERS),
    "Less": (torch.lt, NUMBERS),
    "GreaterOrEqual": (torch.ge, NUMBERS),
    "LessOrEqual": (torch.le, NUMBERS),
}

_RULES: dict[str, Rule] = {
    **_rules(takes(FLOATS), _OF_FLOATS),
    **_rules(takes(NUMBERS), {"Abs": torch.abs, "Sign": _sign}),
    **_rules(takes(FLOATS | SIGNED), {"Neg": torch.neg}),
    **{
        name: Rule(_arithmetic(function), takes(NUMBERS), since=7)
        for name, function in _ARITHMETIC.items()
    },
    "Div": Rule(_load_divide, takes(NUMBERS), since=7),
    "Mod": Rule(_load_modulo, takes(NUMBERS), since=10),
    "Pow": Rule(_load_power, _check_power, since=7),
    **_rules(
        takes(BOOLEAN),
        {
            "And": torch.logical_and,
            "Or": torch.logical_or,
            "Xor": torch.logical_xor,
            "Not": torch.logical_not,
        },
    ),
    **_rules(
        takes(INTEGERS),
        {
            "BitwiseAnd": torch.bitwise_and,
            "BitwiseOr": torch.bitwise_or,
            "BitwiseXor": torch.bitwise_xor,
            "BitwiseNot": torch.bitwise_not,
        },
    ),
    "BitShift": Rule(_load_shift, takes({"uint8"})),
    "IsInf": Rule(_load_is_infinite, takes(FLOATS)),
    **{
        name: Rule(_arithmetic(function), takes(dtypes), since=7)
        for name, (function, dtypes) in _COMPARISONS.items()
    },
    "Clip": Rule(_load_clip, takes(NUMBERS), since=11),
    "Max": Rule(_variadic(torch.maximum), takes(NUMBERS), since=8),
    "Min": Rule(_variadic(torch.minimum), takes(NUMBERS), since=8),
    "Sum": Rule(_variadic(torch.add), takes(FLOATS), since=8),
    "Mean": Rule(_direct(_mean), takes(FLOATS), since=8),
    "Where": Rule(_direct(torch.where), takes(BOOLEAN, MOVED)),
}


class Elementwise(RuleFamily):
    name = "elementwise"
    rules: ClassVar[Mapping[tuple[str, str], Rule]] = {
        ("", name): rule for name, rule in {**_RULES, **CASTING}.items()
    }


SOLUTIONS: Sequence[Solution] = (Elementwise(),)
