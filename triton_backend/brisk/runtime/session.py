"""A session: one model version, loaded, shared by all its instances."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from brisk.errors import InvalidModelError
from brisk.execution import Frame, LoadedProgram, load_program
from brisk.execution.threads import ThreadChoice
from brisk.graph import read_program
from brisk.graph.program import Container, Variable
from brisk.solutions.base import Value
from brisk.wire.datatypes import BY_ELEMENT_NAME


@dataclass(frozen=True, slots=True)
class Session:
    """``summary`` is one line for the log; ``load_ns`` what the load took.

    ``threads`` is the worker's main thread's alone.
    """

    loaded: LoadedProgram
    load_ns: int
    summary: str
    threads: ThreadChoice

    def start(self, inputs: Mapping[str, Value], requested: Sequence[str]) -> Frame:
        """A new frame. Raises InvalidRequestError where the inputs do not fit the model."""
        return Frame(self.loaded, self._with_scalars(inputs), requested)

    def _with_scalars(self, inputs: Mapping[str, Value]) -> Mapping[str, Value]:
        """Triton has no tensors of rank 0: a scalar input comes as ``[1]``."""
        scalars = {
            slot.variable.name for slot in self.loaded.inputs if slot.variable.type.rank == 0
        }
        if not scalars:
            return inputs
        return {
            name: value.reshape(())
            if name in scalars and isinstance(value, torch.Tensor) and value.shape == (1,)
            else value
            for name, value in inputs.items()
        }


def load_session(path: Path, device: torch.device, threads: int) -> Session:
    """Read, optimise and load the model at ``path``, all of it, in this thread.

    ``threads``: how many there are to run it.

    Raises InvalidModelError and its kin where the model cannot be served.
    """
    started_ns = time.monotonic_ns()
    program = read_program(path)
    for variable in (*program.inputs, *program.outputs):
        _check_tensor(variable)
    loaded = load_program(program, device)
    load_ns = time.monotonic_ns() - started_ns
    slow = Counter(
        layer.layer.main.operator for layer in loaded.layers if layer.solution.name == "reference"
    )
    summary = f"{len(loaded.layers)} layers in {load_ns / 1e6:.0f} ms"
    if slow:
        names = ", ".join(f"{operator} ×{count}" for operator, count in slow.most_common(5))
        summary += f"; by the slow reference operators: {names}"
    return Session(loaded, load_ns, summary, ThreadChoice(threads))


def _check_tensor(variable: Variable) -> None:
    kind = variable.type
    if kind.container is not Container.TENSOR:
        raise InvalidModelError(
            f"'{variable.name}' is a {kind.container.value}; Triton serves tensors only"
        )
    if kind.dtype is not None and kind.dtype not in BY_ELEMENT_NAME:
        raise InvalidModelError(
            f"'{variable.name}' is of type {kind.dtype}, for which Triton has no datatype"
        )
