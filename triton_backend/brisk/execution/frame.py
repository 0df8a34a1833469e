"""One job's values and its position in a loaded program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from brisk.errors import BriskError, InternalError, InvalidRequestError
from brisk.execution.loading import LoadedLayer, LoadedProgram
from brisk.segments.program import requested_slots
from brisk.segments.table import LayerTable
from brisk.solutions.values import Value

_OURS = (torch.cuda.OutOfMemoryError, MemoryError, TypeError, AttributeError)
"""Exceptions that no request can be blamed for."""


class TorchFrame:
    """Runs a program one layer at a time; belongs to one thread at a time.

    Raises InvalidRequestError where the inputs do not fit the program, from the constructor or,
    for what only the values show, from ``step``. A frame whose step has raised is finished.
    """

    __slots__ = ("_layers", "_loaded", "_requested", "_values", "position")

    def __init__(
        self,
        loaded: LoadedProgram,
        inputs: Mapping[str, Value],
        requested: Sequence[str] | None = None,
    ) -> None:
        """``inputs`` by name; ``requested`` output names, None for all."""
        self._requested = requested_slots(loaded.outputs, requested)
        self._values = loaded.bind_inputs(inputs)
        self._loaded = loaded
        layers = loaded.layers
        self._layers: Sequence[LoadedLayer | None] = (
            layers.current() if isinstance(layers, LayerTable) else layers
        )
        self.position = 0  # layers done so far

    @property
    def upcoming(self) -> str:
        """The next layer in words, for traces; empty where there is none."""
        if self.is_finished:
            return ""
        return f"{self.position} {self._loaded.program.layers[self.position].operator}"

    @property
    def is_finished(self) -> bool:
        return self.position == len(self._layers)

    def step(self) -> bool:
        """Run one layer, free what nothing reads any more; True where the job is finished."""
        values, layers, position = self._values, self._layers, self.position
        if position == len(layers):
            return True
        layer = layers[position]
        if layer is None:  # it is still to be loaded
            layer = self._loaded.layers[position]
        try:
            made = layer.kernel(*[values[slot] for slot in layer.reads])
        except BriskError:
            raise
        except Exception as error:
            raise self._classify(error) from error
        for slot, value in zip(layer.writes, made):  # noqa: B905  # strict costs; load checks it
            values[slot] = value
        for slot in layer.dead:
            values[slot] = None
        self.position = position = position + 1
        return position == len(layers)

    def results(self) -> dict[str, Value]:
        """The requested outputs by name. Precondition: the job is finished."""
        values = self._values
        if self.position != len(self._layers):
            raise InternalError(
                f"program '{self._loaded.program.name}' has run {self.position} of "
                f"{len(self._layers)} layers, results were asked for"
            )
        return {name: values[slot] for name, slot in self._requested.items()}

    def _classify(self, error: Exception) -> BriskError:
        """Whose fault a kernel's exception is.

        A program whose inputs are all of fixed shape and whose kernel fails otherwise than by
        the values' fault (index, value) is ours; the rest is what the request brought.
        """
        node = self._loaded.program.layers[self.position]
        text = f"layer {self.position} ({node.describe()}) failed: {error}"
        if isinstance(error, _OURS):
            return InternalError(text)
        static = all(variable.type.is_static for variable in self._loaded.program.inputs)
        if static and not isinstance(error, (IndexError, ValueError)):
            return InternalError(text)
        return InvalidRequestError(text)


# The serial executor: the simple path, and the oracle of every later pipeline.


def run_serially(
    loaded: LoadedProgram, inputs: Mapping[str, Value], requested: Sequence[str] | None = None
) -> dict[str, Value]:
    """Run the whole program in the calling thread; the requested outputs by name."""
    if not torch.is_inference_mode_enabled():
        with torch.inference_mode():
            return run_serially(loaded, inputs, requested)
    frame = TorchFrame(loaded, inputs, requested)
    while not frame.step():
        pass
    return frame.results()
