"""LSTM, GRU and RNN on torch's recurrent operators, whole sequences in one call.

ONNX orders gates as input-output-forget-cell and update-reset-new, torch as input-forget-cell-
output and reset-update-new; weights are reordered once, when the layer loads. torch has no
backward-only form: the input is turned round, and the result turned back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from brisk.solutions.base import (
    APPLIES,
    Applicability,
    Kernel,
    LoadContext,
    Problem,
    Solution,
    refused,
)
from brisk.solutions.binding import constant_tensor
from brisk.solutions.rules import attribute


@dataclass(frozen=True, slots=True)
class Cell:
    """``order``: ONNX's gate at each of torch's places. ``activations``: ONNX's defaults."""

    order: tuple[int, ...]
    activations: tuple[str, ...]
    call: Callable[..., Any]
    has_cell_state: bool = False


_CELLS: Mapping[str, Cell] = {
    "LSTM": Cell((0, 2, 3, 1), ("Sigmoid", "Tanh", "Tanh"), torch.lstm, True),
    "GRU": Cell((1, 0, 2), ("Sigmoid", "Tanh"), torch.gru),
    "RNN": Cell((0,), ("Tanh",), torch.rnn_tanh),
}

_DTYPES = ("float32", "float64")

_WEIGHT, _RECURRENCE, _BIAS, _LENGTHS, _HIDDEN, _STATE, _PEEPHOLES = range(1, 8)


class Recurrent(Solution):
    """One layer, in any direction, all sequences of full length."""

    name = "torch_recurrent"

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset(("", operator) for operator in _CELLS)

    def check(self, problem: Problem) -> Applicability:
        reason = _refuse_operands(problem) or _refuse_attributes(problem)
        return APPLIES if reason is None else refused(reason)

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """``parameter00`` …: weights and biases in the order of torch's parameter list."""
        order = _CELLS[problem.operator].order
        tensors = []
        weight, recurrence, bias = (
            constant_tensor(problem, position) for position in (_WEIGHT, _RECURRENCE, _BIAS)
        )
        assert weight is not None
        assert recurrence is not None
        for direction in range(weight.shape[0]):
            parts = [weight[direction], recurrence[direction]]
            if bias is not None:
                parts += list(bias[direction].chunk(2))
            for part in parts:
                gates = part.chunk(len(order))
                tensors.append(torch.cat([gates[gate] for gate in order]))
        return {f"parameter{index:02}": tensor for index, tensor in enumerate(tensors)}

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        cell = _CELLS[problem.operator]
        parameters = [weights[name] for name in sorted(weights)]
        call = torch.rnn_relu if _activations(problem)[0] == "Relu" else cell.call
        has_bias = problem.operand(_BIAS) is not None
        bidirectional = _direction(problem) == "bidirectional"
        backward = _direction(problem) == "reverse"
        directions, hidden_size = 1 + bidirectional, parameters[1].shape[1]
        starts = [
            _operand_reader(problem, position)
            for position in ((_HIDDEN, _STATE) if cell.has_cell_state else (_HIDDEN,))
        ]
        kept = [_kept(problem, name) for name in problem.layer.outputs]

        def kernel(*operands: torch.Tensor) -> Sequence[torch.Tensor]:
            source = operands[0].flip(0) if backward else operands[0]
            length, batch = source.shape[:2]
            shape = (directions, batch, hidden_size)
            states: list[Any] = [start(operands) for start in starts]
            states = [source.new_zeros(shape) if state is None else state for state in states]
            state: Any = states if cell.has_cell_state else states[0]
            result, *finals = call(
                source, state, parameters, has_bias, 1, 0.0, False, bidirectional, False
            )
            result = result.reshape(length, batch, directions, hidden_size).transpose(1, 2)
            outputs = [result.flip(0) if backward else result, *finals]
            return [outputs[position] for position in kept]

        return kernel


def _operand_reader(
    problem: Problem, position: int
) -> Callable[[Sequence[torch.Tensor]], torch.Tensor | None]:
    """Finds an initial state: a constant, one of the dynamic operands, or None."""
    operand = problem.operand(position)
    if operand is None or operand.constant is not None:
        constant = constant_tensor(problem, position)
        return lambda operands: constant
    present = [other for other in problem.operands[:position] if other is not None]
    place = sum(other.constant is None for other in present)
    return lambda operands: operands[place]


def _kept(problem: Problem, name: str) -> int:
    return problem.layer.main.outputs.index(name)


def _direction(problem: Problem) -> str:
    return str(attribute(problem, "direction", "forward"))


def _activations(problem: Problem) -> tuple[str, ...]:
    """One name for each gate; where directions differ, of all directions."""
    defaults = _CELLS[problem.operator].activations
    given = tuple(attribute(problem, "activations", defaults))
    return given[: len(defaults)] if given == given[: len(defaults)] * 2 else given


def _refuse_operands(problem: Problem) -> str | None:
    source = problem.operand(0)
    if source is None or source.constant is not None or source.type.rank != 3:
        return "the input is no variable sequence of rank 3"
    if source.type.dtype not in _DTYPES:
        return f"dtype {source.type.dtype} is not one of {', '.join(_DTYPES)}"
    for position in (_WEIGHT, _RECURRENCE, _BIAS):
        operand = problem.operand(position)
        if operand is None and position == _BIAS:
            continue
        if operand is None or operand.constant is None:
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
    if attribute(problem, "layout", 0):
        return "batch-first layout"
    if "clip" in problem.attributes:
        return "clipped cells"
    if attribute(problem, "input_forget", 0):
        return "coupled input and forget gates"
    if problem.operator == "GRU" and not attribute(problem, "linear_before_reset", 0):
        return "the reset gate applies before the product (linear_before_reset 0)"
    defaults, given = _CELLS[problem.operator].activations, _activations(problem)
    allowed = [defaults] + ([("Relu",)] if problem.operator == "RNN" else [])
    if given not in allowed:
        return f"activations {given}"
    if problem.attributes.get("activation_alpha") or problem.attributes.get("activation_beta"):
        return "activations with parameters"
    return None


SOLUTIONS: tuple[Solution, ...] = (Recurrent(),)
