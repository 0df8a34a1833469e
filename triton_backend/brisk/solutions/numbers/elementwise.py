"""Element-wise arithmetic, comparison, logic and changes of dtype, with ONNX's broadcasting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import (
    BOOLEAN,
    FLOATS,
    INTEGERS,
    MOVED,
    NUMBERS,
    SIGNED,
    Check,
    Rule,
    anything,
    bind,
    plain,
    single,
    takes,
)
from brisk.solutions.values import Value


def _load_divide(problem: Problem) -> Kernel:
    """Integers truncate towards zero, as the operator is defined since version 14."""
    if problem.dtype() in INTEGERS:
        return bind(problem, functools.partial(torch.div, rounding_mode="trunc"))
    return bind(problem, torch.div)


def _load_modulo(problem: Problem) -> Kernel:
    return bind(problem, torch.fmod if problem.attribute("fmod", 0) else torch.remainder)


def _load_power(problem: Problem) -> Kernel:
    """The result has the base's dtype, whatever the exponent's."""
    exponent = problem.operands[1]
    assert exponent is not None
    fixed = exponent.constant
    is_number = fixed is not None and fixed.size == 1 and fixed.ndim <= (problem.rank() or 0)
    if is_number and problem.dtype() in FLOATS:
        # for whole and half exponents torch multiplies or takes roots
        return bind(problem, lambda x, number: torch.pow(x, single(number)), numbers={1})
    if problem.dtype() == exponent.type.dtype:
        return bind(problem, torch.pow)
    return bind(problem, lambda x, y: torch.pow(x, y).to(x.dtype))


def _check_power(problem: Problem) -> str | None:
    reason = takes(FLOATS | {"int32", "int64"}, NUMBERS)(problem)
    if reason or problem.dtype() in FLOATS or problem.dtype(1) in INTEGERS:
        return reason
    return "an integer to the power of a float"  # numpy's and torch's rounding differ


def _load_shift(problem: Problem) -> Kernel:
    left = problem.attribute("direction", "LEFT") == "LEFT"
    return bind(problem, torch.bitwise_left_shift if left else torch.bitwise_right_shift)


def _load_is_infinite(problem: Problem) -> Kernel:
    negative = problem.attribute("detect_negative", 1)
    positive = problem.attribute("detect_positive", 1)
    if negative and positive:
        return bind(problem, torch.isinf)
    if not negative and not positive:
        return bind(problem, lambda x: torch.zeros_like(x, dtype=torch.bool))
    return bind(problem, torch.isposinf if positive else torch.isneginf)


def _load_clip(problem: Problem) -> Kernel:
    given = [operand for operand in problem.operands[1:] if operand is not None]
    if not given:
        return bind(problem, lambda x, *_: x)
    fixed = all(operand.constant is not None and operand.constant.ndim == 0 for operand in given)
    return bind(problem, torch.clamp, numbers={1, 2} if fixed else ())


def _variadic(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *values: functools.reduce(function, values)


def _mean(*values: torch.Tensor) -> torch.Tensor:
    return functools.reduce(torch.add, values) / len(values)


def _sign(x: torch.Tensor) -> torch.Tensor:
    """NaN stays NaN, which ``torch.sign`` alone makes 0."""
    return torch.sign(x) if not x.is_floating_point() else torch.where(x.isnan(), x, x.sign())


_CAST_DTYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}
"""Element types that torch converts as ONNX does, by ONNX's number (TensorProto.DataType)."""


def _load_cast(problem: Problem) -> Kernel:
    dtype = _CAST_DTYPES[problem.attribute("to", 0)]
    return bind(problem, lambda x: x.to(dtype))


def _check_cast(problem: Problem) -> str | None:
    number = problem.attribute("to", 0)
    if number not in _CAST_DTYPES:
        return f"element type {number} is converted by the reference only"
    return takes(MOVED)(problem)


def _load_dropout(problem: Problem) -> Kernel:
    if len(problem.layer.outputs) == 1:
        return bind(problem, lambda x, *_: x)
    return lambda x, *_: (x, torch.ones_like(x, dtype=torch.bool))


def _check_dropout(problem: Problem) -> str | None:
    if problem.operand(2) is not None and problem.constant(2) is not False:
        return "may run in training mode"
    if not problem.is_dynamic(0):
        return "drops out of a constant"
    return takes(FLOATS, FLOATS, BOOLEAN)(problem)


def _rules(
    check: Check, functions: Mapping[str, Callable[..., Value]], since: int = 1
) -> dict[str, Rule]:
    return {name: Rule(plain(function), check, since) for name, function in functions.items()}


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

_OF_BOOLEANS: dict[str, Callable[..., Value]] = {
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
    "Not": torch.logical_not,
}

_OF_BITS: dict[str, Callable[..., Value]] = {
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "BitwiseNot": torch.bitwise_not,
}

_BROADCASTING: dict[str, Callable[..., Value]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Greater": torch.gt,
    "Less": torch.lt,
    "GreaterOrEqual": torch.ge,
    "LessOrEqual": torch.le,
}

ELEMENTWISE: dict[str, Rule] = {
    **_rules(takes(FLOATS), _OF_FLOATS),
    **_rules(takes(BOOLEAN), _OF_BOOLEANS),
    **_rules(takes(INTEGERS), _OF_BITS),
    **_rules(takes(NUMBERS), _BROADCASTING, since=7),
    **_rules(takes(NUMBERS), {"Abs": torch.abs, "Sign": _sign}),
    **_rules(takes(FLOATS | SIGNED), {"Neg": torch.neg}),
    "Equal": Rule(plain(torch.eq), takes(MOVED), since=7),
    "Div": Rule(_load_divide, takes(NUMBERS), since=7),
    "Mod": Rule(_load_modulo, takes(NUMBERS), since=10),
    "Pow": Rule(_load_power, _check_power, since=7),
    "BitShift": Rule(_load_shift, takes({"uint8"})),
    "IsInf": Rule(_load_is_infinite, takes(FLOATS)),
    "Clip": Rule(_load_clip, takes(NUMBERS), since=11),
    "Max": Rule(plain(_variadic(torch.maximum)), takes(NUMBERS), since=8),
    "Min": Rule(plain(_variadic(torch.minimum)), takes(NUMBERS), since=8),
    "Sum": Rule(plain(_variadic(torch.add)), takes(FLOATS), since=8),
    "Mean": Rule(plain(_mean), takes(FLOATS), since=8),
    "Where": Rule(plain(torch.where), takes(BOOLEAN, MOVED)),
    "Cast": Rule(_load_cast, _check_cast, since=6),
    "CastLike": Rule(plain(lambda x, like: x.to(like.dtype)), takes(MOVED)),
    "Identity": Rule(plain(lambda x: x), anything),
    "Dropout": Rule(_load_dropout, _check_dropout, since=12),
}
