"""The class scores of a model, and what of its answer follows from them alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from brisk.errors import InvalidModelError
from brisk.execution.loading import LoadedProgram
from brisk.graph.program import Program
from brisk.solutions.base import Value


class ScoreForm(str, Enum):
    """What the scores are: a cache answers in the same form."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"
    LOG_PROBABILITIES = "log_probabilities"


_FORMS = {"Softmax": ScoreForm.PROBABILITIES, "LogSoftmax": ScoreForm.LOG_PROBABILITIES}

_LABELLING = frozenset({"ArgMax", "TopK"})
"""Operators which say that what they read are scores of classes."""

_NO_CLASSES = frozenset({"Sigmoid", "LpNormalization", "Tanh", "Relu"})
"""Operators that make independent labels, embeddings or hidden features, not a distribution."""


@dataclass(frozen=True, slots=True)
class Scores:
    """``value``: float32 [rows, ``classes``], made by layer ``layer``.

    ``tail``: indices of the layers that compute outputs from it. ``is_certain``: the model itself
    says that these are classes, by a softmax, or by labels that it makes of them.
    """

    value: str
    layer: int
    classes: int
    form: ScoreForm
    tail: tuple[int, ...]
    is_certain: bool


def find_scores(program: Program, wanted: str | None = None) -> Scores:
    """The scores from which every output follows; ``wanted`` names them where it is given.

    Raises InvalidModelError where there are none: the model does not classify.
    """
    for layer in reversed(program.layers):
        for name in layer.outputs:
            kind = program.type_of(name)
            if wanted not in (None, name) or kind.dtype != "float32" or kind.rank != 2:
                continue
            classes = kind.shape[1] if kind.shape else None
            tail = _tail(program, name, layer.index)
            if not isinstance(classes, int) or classes < 2 or tail is None:
                continue
            last = layer.epilogue[-1].operator if layer.epilogue else layer.main.operator
            behind = {node.operator for index in tail for node in program.layers[index].nodes}
            if wanted is None and not _NO_CLASSES.isdisjoint({last, *behind}):
                continue
            form = _FORMS.get(last, ScoreForm.LOGITS)
            certain = form is not ScoreForm.LOGITS or wanted is not None
            certain = certain or not behind.isdisjoint({*_LABELLING, *_FORMS})
            return Scores(name, layer.index, classes, form, tail, certain)
    outputs = ", ".join(variable.name for variable in program.outputs)
    named = f"'{wanted}'" if wanted else "float32 [batch, classes]"
    raise InvalidModelError(
        f"model '{program.name}' has no class scores that all its outputs ({outputs}) follow "
        f"from: expected {named}; learned caches answer classifications only"
    )


def _tail(program: Program, value: str, made_by: int) -> tuple[int, ...] | None:
    """Layers that make the outputs from ``value`` and constants; None where they read more."""
    makers = {name: layer for layer in program.layers for name in layer.outputs if name}
    inputs = {variable.name for variable in program.inputs}
    pending = [variable.name for variable in program.outputs]
    tail: set[int] = set()
    while pending:
        name = pending.pop()
        if name == value or (name in program.weights and name not in inputs) or not name:
            continue
        maker = makers.get(name)
        if maker is None or maker.index <= made_by:
            return None
        if maker.index not in tail:
            tail.add(maker.index)
            pending.extend(maker.operands)
    return tuple(sorted(tail))


def as_form(logits: torch.Tensor, form: ScoreForm) -> torch.Tensor:
    """Logits of a cache in the form that the model answers in."""
    if form is ScoreForm.PROBABILITIES:
        return logits.softmax(1)
    if form is ScoreForm.LOG_PROBABILITIES:
        return logits.log_softmax(1)
    return logits


def as_probabilities(scores: torch.Tensor, form: ScoreForm) -> torch.Tensor:
    """The model's scores as a distribution over classes, float32 [rows, classes]."""
    if form is ScoreForm.PROBABILITIES:
        return scores
    return scores.softmax(1)


def finish_answer(
    loaded: LoadedProgram, tail: Sequence[int], slot: int, value: torch.Tensor
) -> dict[str, Value]:
    """All outputs by name, from the scores (in the model's form), which lie in ``slot``, alone."""
    values: list[Value] = list(loaded.initial)
    values[slot] = value
    for index in tail:
        layer = loaded.layers[index]
        made = layer.kernel(*[values[slot] for slot in layer.reads])
        for written, result in zip(layer.writes, made, strict=True):
            values[written] = result
    return {name: values[slot] for name, slot in loaded.outputs.items()}


def slots_of(loaded: LoadedProgram) -> Mapping[str, int]:
    """The slot of every value that a layer makes, and of every input."""
    places = {slot.variable.name: slot.index for slot in loaded.inputs}
    for layer in loaded.layers:
        places.update(zip(layer.layer.outputs, layer.writes, strict=True))
    return places
