"""The answers of a model: class scores, from which its outputs follow, or values.

An early answer counts as the model's own if it has the same class, or values within a tolerance.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from onnx import GraphProto, ModelProto

from brisk.errors import InternalError, InvalidModelError
from brisk.exits.files.container import NUMBERS
from brisk.exits.model_graph import ModelGraph, sizes_text
from brisk.graph.program import ValueType, Variable
from brisk.segments.model.extraction import Segment
from brisk.segments.model.graph_names import constants_of, reads_of
from brisk.segments.model.opening import Form, open_segment
from brisk.segments.onnxruntime import OrtSession
from brisk.segments.source import SegmentSpec
from brisk.settings import COSINE, Tolerance


class ScoreForm(str, Enum):
    """The form of the scores, in which caches answer, too. ``VALUES``: an embedding or a
    regression, no scores of classes."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"
    LOG_PROBABILITIES = "log_probabilities"
    VALUES = "values"


_FORMS = {"Softmax": ScoreForm.PROBABILITIES, "LogSoftmax": ScoreForm.LOG_PROBABILITIES}

_LABELLING = frozenset({"ArgMax", "TopK"})
"""Operators whose inputs are scores of classes."""

_NO_CLASSES = frozenset({"Sigmoid", "LpNormalization", "Tanh", "Relu"})
"""Operators that make independent labels, embeddings or hidden features, not a distribution."""

_PICKING = _LABELLING | {"ReduceMax", "GatherElements", "GatherND"}
"""Operators that take a number out of scores of classes, such as that of the likeliest one."""

_PRODUCTS = ("Gemm", "MatMul", "Conv", "Einsum")
"""Parts of the names of operators that multiply with weights: what they read is a hidden layer."""

_MOVING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Cast"})
"""Operators that do not change numbers: the operator before them says what these are."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The class scores of a model, or its values."""

    value: str
    """The name of the value, float32 [rows, ``classes``]; of values [rows, ..., ``classes``]."""
    position: int
    """The number of nodes done when the value is there."""
    classes: int
    form: ScoreForm
    is_certain: bool
    """Whether the model itself says that these are classes, by a softmax, or by labels that it
    makes of them."""
    tolerance: Tolerance | None = None
    """The tolerance of ``VALUES``; None for the other forms."""
    others: tuple[str, ...] = ()
    """The model's other outputs, if they are values: each has to keep to the tolerance."""
    rank: int = 2
    """The dimensions of ``value``. Those behind the classes are of size 1, if there are any."""


def find_scores(graph: ModelGraph, wanted: str | None = None) -> Scores:
    """Return the scores from which every output follows; ``wanted``: their name, if it is given.

    They are float32 [rows, classes], perhaps with trailing dimensions of size 1. Of equal values
    the first is returned. No hidden layer is taken for them: nothing behind them multiplies with
    weights, nor makes an output of one number for each row, but by picking one of the scores.
    Raises InvalidModelError if there are none: the model does not classify.
    """
    _check_batch(graph)
    nodes = graph.graph.node
    same = {node.output[0]: node.input[0] for node in nodes if node.op_type == "Identity"}
    asked = wanted
    while wanted in same:
        wanted = same[wanted]
    is_regression = wanted is None and _gives_a_number(graph)
    for position in () if is_regression else range(len(nodes) - 1, -1, -1):
        for name in nodes[position].output:
            kind = graph.types.get(name)
            if wanted not in (None, name) or kind is None:
                continue
            shape = kind.shape or ()
            if kind.dtype != "float32" or len(shape) < 2 or any(side != 1 for side in shape[2:]):
                continue
            classes = shape[1]
            tail = tail_nodes(graph, name, position)
            if not isinstance(classes, int) or classes < 2 or tail is None:
                continue
            made_by = _made_by(graph, position)
            behind = {nodes[index].op_type for index in tail}
            if wanted is None and not _NO_CLASSES.isdisjoint({made_by, *behind}):
                continue
            if wanted is None and any(part in each for part in _PRODUCTS for each in behind):
                continue
            form = _FORMS.get(made_by, ScoreForm.LOGITS)
            certain = wanted is not None or _says_classes(form, behind)
            return Scores(name, position + 1, classes, form, certain, rank=len(shape))
    outputs = ", ".join(variable.name for variable in graph.outputs)
    named = f"'{asked}'" if asked else "float32 [batch, classes]"
    raise InvalidModelError(
        f'set brisk_tolerance in the entry (or --tolerance "{COSINE} 0.99" of `brisk caches '
        f"train`): model '{graph.name}' has no class scores that all its outputs ({outputs}) "
        f"follow from; expected {named}, or a tolerance that says which values count as the "
        "model's own"
    )


def _gives_a_number(graph: ModelGraph) -> bool:
    """Whether an output is a floating-point number for each row that is not one of some scores."""
    makers = {name: place for place, node in enumerate(graph.graph.node) for name in node.output}
    return any(
        (each.type.dtype or "").startswith("float")
        and bool(each.type.shape)
        and all(side == 1 for side in (each.type.shape or ())[1:])
        and graph.may_have_rows(each.name)
        and each.name in makers
        and _made_by(graph, makers[each.name]) not in _PICKING
        for each in graph.outputs
    )


def _says_classes(form: ScoreForm, behind: Collection[str]) -> bool:
    """Whether scores are of classes by their form, or by the operators ``behind`` them."""
    return form is not ScoreForm.LOGITS or not {*_LABELLING, *_FORMS}.isdisjoint(behind)


def says_classes(graph: ModelGraph, scores: Scores) -> bool:
    """Whether the model itself says that ``scores`` are of classes (``Scores.is_certain``)."""
    tail = tail_nodes(graph, scores.value, scores.position - 1, scores.others) or ()
    return _says_classes(scores.form, {graph.graph.node[index].op_type for index in tail})


def may_be_shares(graph: ModelGraph, scores: Scores) -> bool:
    """Whether samples may show that ``scores``, logits by their operator, are a distribution: a
    softmax written out in elementary operators ends in one of these."""
    return _made_by(graph, scores.position - 1) in ("Div", "Mul", "Sub")


def uncertain(scores: Scores, model: str) -> InvalidModelError:
    """Return the error of a model that may give values, where nothing says that it classifies."""
    return InvalidModelError(
        f"output '{scores.value}' of model '{model}' may be values: no softmax and no label says "
        "that it is classes; set brisk_accuracy in the entry if it is, brisk_tolerance if not"
    )


def find_values(graph: ModelGraph, tolerance: Tolerance) -> Scores:
    """Return the model's outputs as values: a row counts as the model's own if each output is
    within ``tolerance``, and integers are equal.

    Raises InvalidModelError if an output has no rows or no numbers, or if none is float32 with a
    last dimension of a fixed size, by which typical rows are recognised.
    """
    _check_batch(graph)
    made_by = {name: place for place, node in enumerate(graph.graph.node) for name in node.output}
    outputs = graph.outputs
    is_fit = all(
        each.name in made_by and each.type.dtype in NUMBERS and graph.may_have_rows(each.name)
        for each in outputs
    )
    described = ", ".join(
        f"{each.name} {each.type.dtype} {sizes_text(each.type.shape or ())}" for each in outputs
    )
    first = next((each for each in outputs if _may_be_typical(each.type)), None)
    if not is_fit or first is None:
        raise InvalidModelError(
            f"model '{graph.name}' has outputs {described}: a tolerance is of tensors of numbers "
            "with rows, one of them float32 [batch, ..., values], the number of values being fixed"
        )
    if tolerance.measure == COSINE and (single := [each for each in outputs if _is_single(each)]):
        raise InvalidModelError(
            f"model '{graph.name}' has outputs {described}: of '{single[0].name}', a single "
            "number, a cosine says nothing; expected an absolute tolerance"
        )
    return Scores(
        value=first.name,
        position=made_by[first.name] + 1,
        classes=(first.type.shape or ())[-1],  # type: ignore[arg-type]  # ``_may_be_typical``
        form=ScoreForm.VALUES,
        is_certain=True,
        tolerance=tolerance,
        others=tuple(each.name for each in outputs if each is not first),
        rank=first.type.rank or 0,
    )


def _check_batch(graph: ModelGraph) -> None:
    """Raise InvalidModelError if a batch always has several rows."""
    if isinstance(graph.batch, int) and graph.batch > 1:
        raise InvalidModelError(
            f"model '{graph.name}' takes batches of {graph.batch} rows and no others: early "
            "answers need rows that can leave a batch"
        )


def _may_be_typical(kind: ValueType) -> bool:
    last = (kind.shape or (None,))[-1]
    return kind.dtype == "float32" and (kind.rank or 0) >= 2 and isinstance(last, int) and last > 0


def _is_single(output: Variable) -> bool:
    """Whether a row of ``output`` is one floating-point number, or several without a vector."""
    shape = output.type.shape or ()
    return (output.type.dtype or "").startswith("float") and (len(shape) < 2 or shape[-1] == 1)


def _made_by(graph: ModelGraph, position: int) -> str:
    """Return the operator that computes the numbers which node ``position`` returns."""
    makers = {name: node for node in graph.graph.node for name in node.output if name}
    node = graph.graph.node[position]
    while node.op_type in _MOVING and node.input and node.input[0] in makers:
        node = makers[node.input[0]]
    return node.op_type


def tail_nodes(
    graph: ModelGraph, value: str, made_by: int, given: Collection[str] = ()
) -> tuple[int, ...] | None:
    """Return the nodes that compute the outputs, except those ``given``, from ``value`` and
    constants; None if they read more."""
    nodes = graph.graph.node
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    constant = constants_of(graph.graph) - {variable.name for variable in graph.inputs}
    pending = [variable.name for variable in graph.outputs if variable.name not in given]
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
    """The model's last nodes, from the class scores to all outputs."""

    def __init__(self, graph: ModelGraph, scores: Scores) -> None:
        """Cut the nodes behind ``scores``. Raises InvalidModelError if the model lacks them."""
        places = None
        if 0 < scores.position <= len(graph.graph.node):
            places = tail_nodes(graph, scores.value, scores.position - 1, scores.others)
        if places is None:
            raise InvalidModelError(
                f"{graph.path}: its outputs do not follow from a value '{scores.value}' alone"
            )
        self._scores = scores.value
        self._outputs = tuple(variable.name for variable in graph.outputs)
        self._others = scores.others
        self._form, self._rank = scores.form, scores.rank
        given = (scores.value, *scores.others)
        self._made = [name for name in self._outputs if name not in given]
        self._session = _open(graph, scores.value, places, self._made) if self._made else None

    def finish(
        self, scores: np.ndarray, others: Sequence[np.ndarray] = ()
    ) -> dict[str, np.ndarray]:
        """Return all outputs by name, from the scores in the model's form and the others."""
        if self._form is not ScoreForm.VALUES:
            scores = scores.reshape(*scores.shape, *[1] * (self._rank - scores.ndim))
        values = {self._scores: scores, **dict(zip(self._others, others, strict=True))}
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
    described = next((info for info in infos if info.name == value), None)
    if described is None:
        raise InvalidModelError(f"{graph.path}: the type of its value '{value}' is not known")
    part.input.append(described)
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
    """Return an exit's logits, float32 [rows, classes], in the form of the model's scores."""
    if form in (ScoreForm.LOGITS, ScoreForm.VALUES):
        return logits
    shifted = logits - logits.max(1, keepdims=True)
    exponents = np.exp(shifted)
    sums = exponents.sum(1, keepdims=True)
    formed = exponents / sums if form is ScoreForm.PROBABILITIES else shifted - np.log(sums)
    result: np.ndarray = formed.astype(np.float32, copy=False)
    return result


def as_probabilities(scores: np.ndarray, form: ScoreForm) -> np.ndarray:
    """Return the model's scores as a distribution over classes, float32 [rows, classes].

    Values are returned as they are.
    """
    if form in (ScoreForm.PROBABILITIES, ScoreForm.VALUES):
        return scores
    return as_form(scores, ScoreForm.PROBABILITIES)


def classes_of(distribution: np.ndarray) -> np.ndarray:
    """Return the class of each row of the model's distribution, int64 [rows]; -1, which no exit
    answers, of rows that are no numbers."""
    return np.where(np.isfinite(distribution).all(1), distribution.argmax(1), -1)


def agreeing(ours: np.ndarray, theirs: np.ndarray, scores: Scores) -> np.ndarray:
    """Return which rows of an early answer count as the model's own, bool [rows].

    Both arrays are [rows, ``scores.classes``], an exit's logits and the model's distribution; or a
    value of either, [rows, ...]. NaN agrees with nothing. A cosine is taken over the last
    dimension and has to be within the tolerance everywhere.
    """
    if scores.tolerance is None:
        return np.asarray(ours.argmax(1) == classes_of(theirs))
    inner = tuple(range(1, ours.ndim))
    if ours.shape != theirs.shape:
        return np.zeros(len(ours), bool)
    if ours.dtype.kind != "f":
        return np.asarray((ours == theirs).all(inner))
    one, other = ours.astype(np.float64), theirs.astype(np.float64)
    measure, limit = scores.tolerance
    with np.errstate(all="ignore"):
        if measure != COSINE:
            return np.asarray((np.abs(one - other) <= limit).all(inner))
        lengths = np.sqrt((one * one).sum(-1) * (other * other).sum(-1))
        is_same = (one == other).all(-1)  # two rows of zeros have no angle
        is_near = ((one * other).sum(-1) >= limit * lengths) & (lengths > 0) | is_same
        return np.asarray(is_near.all(inner[:-1]))


def all_agreeing(
    ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], scores: Scores
) -> np.ndarray:
    """Return which rows agree in all arrays: scores, or the value and the others; bool [rows]."""
    pairs = zip(ours, theirs, strict=True)
    return np.logical_and.reduce([agreeing(one, other, scores) for one, other in pairs])


def checked_scores(array: np.ndarray, scores: Scores) -> np.ndarray:
    """Return ``array`` as [rows, classes]; values are returned as they are.

    Raises InternalError if its shape is not that of ``scores``.
    """
    is_values = scores.form is ScoreForm.VALUES
    behind = () if is_values else (1,) * (scores.rank - 2)
    sides = array.shape[-1:] if is_values else array.shape[1:]
    if array.ndim != scores.rank or sides != (scores.classes, *behind):
        between = "..., " if is_values and scores.rank > 2 else ""
        expected = ", ".join(map(str, (scores.classes, *behind)))
        raise InternalError(
            f"'{scores.value}' has shape {list(array.shape)}, expected [rows, {between}{expected}]"
        )
    return array if is_values else array.reshape(len(array), scores.classes)
