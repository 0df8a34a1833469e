"""LSTM, GRU and RNN on torch's recurrent operators, whole sequences in one call.

ONNX orders gates as input-output-forget-cell and update-reset-new, torch as input-forget-cell-
output and reset-update-new; weights are reordered once, when the layer loads. torch has no
backward-only form: the input is turned round, and the result turned back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import Rule, bind, constant_tensor, several


@dataclass(frozen=True, slots=True)
class Cell:
    """``order``: ONNX's gate at each of torch's places. ``activations``: ONNX's defaults."""

    order: tuple[int, ...]
    activations: tuple[str, ...]
    call: Callable[..., Any]


_CELLS: Mapping[str, Cell] = {
    "LSTM": Cell((0, 2, 3, 1), ("Sigmoid", "Tanh", "Tanh"), torch.lstm),
    "GRU": Cell((1, 0, 2), ("Sigmoid", "Tanh"), torch.gru),
    "RNN": Cell((0,), ("Tanh",), torch.rnn_tanh),
}

_WEIGHT, _RECURRENCE, _BIAS, _LENGTHS, _HIDDEN, _STATE, _PEEPHOLES = range(1, 8)


def _parameters(problem: Problem) -> list[Tensor]:
    """Weights and biases in the order of torch's parameter list."""
    order = _CELLS[problem.operator].order
    weight, recurrence, bias = (
        constant_tensor(problem, position) for position in (_WEIGHT, _RECURRENCE, _BIAS)
    )
    tensors = []
    for direction in range(weight.shape[0]):
        parts = [weight[direction], recurrence[direction]]
        if bias is not None:
            parts += bias[direction].chunk(2)
        for part in parts:
            gates = part.chunk(len(order))
            tensors.append(torch.cat([gates[gate] for gate in order]))
    return tensors


def _load(problem: Problem) -> Kernel:
    """One layer, in any direction, all sequences of full length."""
    cell, parameters = _CELLS[problem.operator], _parameters(problem)
    call = torch.rnn_relu if _activations(problem)[0] == "Relu" else cell.call
    has_bias, has_cell_state = problem.operand(_BIAS) is not None, problem.operator == "LSTM"
    direction = problem.attribute("direction", "forward")
    bidirectional, backward = direction == "bidirectional", direction == "reverse"
    directions, hidden_size = 1 + bidirectional, parameters[1].shape[1]
    count = len(problem.node.outputs)

    def compute(source: Tensor, *others: Tensor | None) -> Any:
        source = source.flip(0) if backward else source
        length, batch = source.shape[:2]
        zeros = source.new_zeros((directions, batch, hidden_size))
        hidden, cells, *_ = (*others[_HIDDEN - 1 :], None, None)
        state: Any = zeros if hidden is None else hidden
        if has_cell_state:
            state = [state, zeros if cells is None else cells]
        result, *finals = call(
            source, state, parameters, has_bias, 1, 0.0, False, bidirectional, False
        )
        result = result.reshape(length, batch, directions, hidden_size).transpose(1, 2)
        return [result.flip(0) if backward else result, *finals][:count]

    states = [
        constant_tensor(problem, position) if position in (_HIDDEN, _STATE) else None
        for position in range(len(problem.operands))
    ]
    return several(lambda problem: bind(problem, compute, bound=states))(problem)


def _activations(problem: Problem) -> tuple[str, ...]:
    """One name for each gate; where directions differ, of all directions."""
    defaults = _CELLS[problem.operator].activations
    given = tuple(problem.attribute("activations", defaults))
    return given[: len(defaults)] if given == given[: len(defaults)] * 2 else given


def _refuse_operands(problem: Problem) -> str | None:
    source = problem.operand(0)
    if source is None or source.type.rank != 3:
        return "the input is no sequence of rank 3"
    if source.type.dtype not in ("float32", "float64"):
        return f"dtype {source.type.dtype} is not float32 or float64"
    if any(map(problem.is_dynamic, (_WEIGHT, _RECURRENCE, _BIAS))):
        return "the weights are not constant"
    if problem.operand(_PEEPHOLES) is not None:
        return "peepholes"
    lengths = problem.operand(_LENGTHS)
    longest = (source.type.shape or (None,))[0]
    if lengths is not None:
        if lengths.constant is None:
            return "sequence lengths that are not constant"
        if not isinstance(longest, int) or (lengths.constant != longest).any():
            return "sequences of different lengths"
    return None if longest != 0 else "empty sequences"


def _refuse_attributes(problem: Problem) -> str | None:
    if problem.attribute("layout", 0):
        return "batch-first layout"
    if "clip" in problem.node.attributes:
        return "clipped cells"
    if problem.attribute("input_forget", 0):
        return "coupled input and forget gates"
    if problem.operator == "GRU" and not problem.attribute("linear_before_reset", 0):
        return "the reset gate applies before the product (linear_before_reset 0)"
    defaults, given = _CELLS[problem.operator].activations, _activations(problem)
    allowed = [defaults] + ([("Relu",)] if problem.operator == "RNN" else [])
    if given not in allowed:
        return f"activations {given}"
    if problem.attribute("activation_alpha", ()) or problem.attribute("activation_beta", ()):
        return "activations with parameters"
    return None


def _check(problem: Problem) -> str | None:
    return _refuse_operands(problem) or _refuse_attributes(problem)


RECURRENT: dict[str, Rule] = {operator: Rule(_load, _check) for operator in _CELLS}
