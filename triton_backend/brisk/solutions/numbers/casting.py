"""Changes of dtype, and values passed on as they are."""

from __future__ import annotations

from typing import Any

import torch

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import FLOATS, MOVED, Rule, attribute, bind, constant, takes
from brisk.solutions.values import TORCH_DTYPES

_NAMES_BY_NUMBER = {
    1: "float32",
    2: "uint8",
    3: "int8",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    16: "bfloat16",
}
"""Element types that torch converts as ONNX does, by ONNX's number (TensorProto.DataType)."""


def _load_cast(problem: Problem) -> Kernel:
    dtype = TORCH_DTYPES[_NAMES_BY_NUMBER[attribute(problem, "to", 0)]]
    return bind(problem, lambda x: x.to(dtype))


def _check_cast(problem: Problem) -> str | None:
    number = attribute(problem, "to", 0)
    if number not in _NAMES_BY_NUMBER:
        return f"element type {number} is converted by the reference only"
    return takes(MOVED)(problem)


def _load_cast_like(problem: Problem) -> Kernel:
    return bind(problem, lambda x, like: x.to(like.dtype))


def _check_anything(problem: Problem) -> str | None:
    return None


def _load_dropout(problem: Problem) -> Kernel:
    def kernel(x: Any, *_: Any) -> tuple:
        return x, torch.ones_like(x, dtype=torch.bool)

    if len(problem.layer.main.outputs) == 1:
        return bind(problem, lambda x, *_: x)
    return kernel


def _check_dropout(problem: Problem) -> str | None:
    training = problem.operand(2)
    if training is not None and constant(problem, 2) is not False:
        return "may run in training mode"
    data = problem.operands[0]
    if data is None or data.constant is not None:
        return "drops out of a constant"
    return takes(FLOATS, FLOATS, {"bool"})(problem)


CASTING: dict[str, Rule] = {
    "Cast": Rule(_load_cast, _check_cast, since=6),
    "CastLike": Rule(_load_cast_like, takes(MOVED)),
    "Identity": Rule(lambda problem: bind(problem, lambda x: x), _check_anything),
    "Dropout": Rule(_load_dropout, _check_dropout, since=12),
}
