"""What a model answers: class scores, from which the rest of its answer follows, or values.

And when an early answer counts as the model's own: the same class, or values within a tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from onnx import GraphProto, ModelProto

from brisk.errors import InternalError, InvalidModelError
from brisk.exits.model_graph import ModelGraph
from brisk.segments.model.extraction import Segment
from brisk.segments.model.graph_names import constants_of, reads_of
from brisk.segments.model.opening import Form, open_segment
from brisk.segments.onnxruntime import OrtSession
from brisk.segments.source import SegmentSpec
from brisk.settings import COSINE, Tolerance


class ScoreForm(str, Enum):
    """What the scores are: a cache answers in the same form. ``VALUES``: no scores of classes, but
    an embedding or a regression."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"
    LOG_PROBABILITIES = "log_probabilities"
    VALUES = "values"


_FORMS = {"Softmax": ScoreForm.PROBABILITIES, "LogSoftmax": ScoreForm.LOG_PROBABILITIES}

_LABELLING = frozenset({"ArgMax", "TopK"})
"""Operators which say that what they read are scores of classes."""

_NO_CLASSES = frozenset({"Sigmoid", "LpNormalization", "Tanh", "Relu"})
"""Operators that make independent labels, embeddings or hidden features, not a distribution."""

_MOVING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Cast"})
"""Operators that leave numbers what they are: what makes their input says what it is."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The class scores of a model, or its values."""

    value: str
    """The name of the value, float32 [rows, ``classes``]."""
    position: int
    """The nodes done when it is there."""
    classes: int
    form: ScoreForm
    is_certain: bool
    """Whether the model itself says that these are classes, by a softmax, or by labels that it
    makes of them."""
    tolerance: Tolerance | None = None
    """None for all forms but ``VALUES``."""


def find_scores(graph: ModelGraph, wanted: str | None = None) -> Scores:
    """The scores from which every output follows; ``wanted`` names them where it is given.

    Of values that are the same, the first one. Raises InvalidModelError where there are none: the
    model does not classify.
    """
    nodes = graph.graph.node
    same = {node.output[0]: node.input[0] for node in nodes if node.op_type == "Identity"}
    asked = wanted
    while wanted in same:
        wanted = same[wanted]
    for position in range(len(nodes) - 1, -1, -1):
        for name in nodes[position].output:
            kind = graph.types.get(name)
            if wanted not in (None, name) or kind is None:
                continue
            if kind.dtype != "float32" or kind.rank != 2:
                continue
            classes = kind.shape[1] if kind.shape else None
            tail = tail_nodes(graph, name, position)
            if not isinstance(classes, int) or classes < 2 or tail is None:
                continue
            made_by = _made_by(graph, position)
            behind = {nodes[index].op_type for index in tail}
            if wanted is None and not _NO_CLASSES.isdisjoint({made_by, *behind}):
                continue
            form = _FORMS.get(made_by, ScoreForm.LOGITS)
            certain = form is not ScoreForm.LOGITS or wanted is not None
            certain = certain or not behind.isdisjoint({*_LABELLING, *_FORMS})
            return Scores(name, position + 1, classes, form, certain)
    outputs = ", ".join(variable.name for variable in graph.outputs)
    named = f"'{asked}'" if asked else "float32 [batch, classes]"
    raise InvalidModelError(
        f"model '{graph.name}' has no class scores that all its outputs ({outputs}) follow "
        f"from: expected {named}; of other models a tolerance has to say which values count as "
        "the model's own"
    )


def find_values(graph: ModelGraph, tolerance: Tolerance) -> Scores:
    """The model's output as values, each row of which counts as its own within ``tolerance``.

    Raises InvalidModelError where it has not exactly one, float32 [batch, values].
    """
    if len(graph.outputs) == 1:
        (output,) = graph.outputs
        shape = output.type.shape or ()
        nodes = graph.graph.node
        made_by = [place for place, node in enumerate(nodes) if output.name in node.output]
        is_fit = output.type.dtype == "float32" and graph.may_have_rows(output.name)
        if made_by and is_fit and len(shape) == 2 and isinstance(shape[1], int) and shape[1] > 0:
            form = ScoreForm.VALUES
            return Scores(output.name, made_by[0] + 1, shape[1], form, True, tolerance)
    described = ", ".join(
        f"{each.name} {each.type.dtype} {list(each.type.shape or ())}" for each in graph.outputs
    )
    raise InvalidModelError(
        f"model '{graph.name}' has outputs {described}: a tolerance is of one, float32 "
        "[batch, values], the number of values being fixed"
    )


def _made_by(graph: ModelGraph, position: int) -> str:
    """The operator that makes the numbers of what node ``position`` gives."""
    makers = {name: node for node in graph.graph.node for name in node.output if name}
    node = graph.graph.node[position]
    while node.op_type in _MOVING and node.input and node.input[0] in makers:
        node = makers[node.input[0]]
    return node.op_type


def tail_nodes(graph: ModelGraph, value: str, made_by: int) -> tuple[int, ...] | None:
    """Nodes that make the outputs from ``value`` and constants; None where they read more."""
    nodes = graph.graph.node
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    constant = constants_of(graph.graph) - {variable.name for variable in graph.inputs}
    pending = [variable.name for variable in graph.outputs]
    tail: set[int] = set()
    while pending:
        name = pending.pop()
        if name == value or name in constant or not name:
            continue
        maker = makers.get(name)
        if maker is None or maker <= made_by:
            return None
        if maker not in tail:
            tail.add(maker)
            pending.extend(reads_of(nodes[maker]))
    return tuple(sorted(tail))


class Tail:
    """The model's own last nodes, from the class scores to all outputs."""

    def __init__(self, graph: ModelGraph, scores: Scores) -> None:
        """Raises InvalidModelError where the model has no such scores."""
        places = None
        if 0 < scores.position <= len(graph.graph.node):
            places = tail_nodes(graph, scores.value, scores.position - 1)
        if places is None:
            raise InvalidModelError(
                f"{graph.path}: its outputs do not follow from a value '{scores.value}' alone"
            )
        self._scores = scores.value
        self._outputs = tuple(variable.name for variable in graph.outputs)
        self._made = [name for name in self._outputs if name != scores.value]
        self._session = _open(graph, scores.value, places, self._made) if self._made else None

    def finish(self, scores: np.ndarray) -> dict[str, np.ndarray]:
        """All outputs by name, from the scores, in the model's form."""
        values = {self._scores: scores}
        if self._session is not None:
            computed = self._session.session.run(self._made, {self._scores: scores})
            values.update(zip(self._made, computed, strict=True))
        return {name: values[name] for name in self._outputs}


def _open(
    graph: ModelGraph, value: str, places: tuple[int, ...], outputs: list[str]
) -> OrtSession:
    source, nodes = graph.graph, [graph.graph.node[place] for place in places]
    read = {name for node in nodes for name in reads_of(node)}
    part = GraphProto(name=f"{graph.name}:tail")
    part.node.extend(nodes)
    part.initializer.extend(tensor for tensor in source.initializer if tensor.name in read)
    part.sparse_initializer.extend(
        tensor for tensor in source.sparse_initializer if tensor.values.name in read
    )
    infos = (*source.input, *source.output, *source.value_info)
    part.input.extend(next([info] for info in infos if info.name == value))
    part.output.extend(info for info in source.output if info.name in outputs)
    proto = ModelProto(
        ir_version=graph.model.ir_version,
        opset_import=graph.model.opset_import,
        functions=graph.model.functions,
        graph=part,
    )
    spec = SegmentSpec(0, (value,), tuple(outputs), (), "what follows from the scores")
    segment = Segment(spec, proto)
    return open_segment(segment, graph.file, [Form.OPTIMISED], 1)[0]


def as_form(logits: np.ndarray, form: ScoreForm) -> np.ndarray:
    """Logits of a cache, float32 [rows, classes], in the form that the model answers in."""
    if form in (ScoreForm.LOGITS, ScoreForm.VALUES):
        return logits
    shifted = logits - logits.max(1, keepdims=True)
    exponents = np.exp(shifted)
    sums = exponents.sum(1, keepdims=True)
    formed = exponents / sums if form is ScoreForm.PROBABILITIES else shifted - np.log(sums)
    result: np.ndarray = formed.astype(np.float32, copy=False)
    return result


def as_probabilities(scores: np.ndarray, form: ScoreForm) -> np.ndarray:
    """The model's scores as a distribution over classes, float32 [rows, classes]; values as they
    are."""
    if form in (ScoreForm.PROBABILITIES, ScoreForm.VALUES):
        return scores
    return as_form(scores, ScoreForm.PROBABILITIES)


def agreeing(ours: np.ndarray, theirs: np.ndarray, scores: Scores) -> np.ndarray:
    """Which rows of an early answer count as the model's own, bool [rows].

    Both [rows, ``scores.classes``]: logits of an exit or values, and the distribution or the
    values of the model. What is no number agrees with nothing.
    """
    if scores.tolerance is None:
        return np.asarray(ours.argmax(1) == theirs.argmax(1))
    one, other = ours.astype(np.float64), theirs.astype(np.float64)
    measure, limit = scores.tolerance
    with np.errstate(all="ignore"):
        if measure != COSINE:
            return np.asarray((np.abs(one - other) <= limit).all(1))
        lengths = np.sqrt((one * one).sum(1) * (other * other).sum(1))
        is_same = (one == other).all(1)  # two rows of zeros have no angle
        return np.asarray(((one * other).sum(1) >= limit * lengths) & (lengths > 0) | is_same)


def checked_scores(array: np.ndarray, scores: Scores) -> np.ndarray:
    """Raises InternalError where ``array`` is not what ``scores`` says."""
    if array.ndim != 2 or array.shape[1] != scores.classes:
        raise InternalError(
            f"'{scores.value}' has shape {list(array.shape)}, expected [rows, {scores.classes}]"
        )
    return array
