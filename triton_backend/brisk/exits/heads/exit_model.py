"""An exit as an ONNX model: checked, and evaluated by ONNX Runtime.

The model reads ``hidden`` float32 [rows, *shape], or a whole model's inputs, and returns
``logits`` float32 [rows, classes], ``score`` float32 [rows] in 0..1, and ``near`` bool [rows]:
whether the row is in the distribution of the training data. A whole model that returns values may
have logits of more dimensions and further outputs, ``brisk.other.0`` and so on. The file that it
comes from is not trusted, so it consists of plain operators only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

from brisk.exits.files.container import DamagedFileError
from brisk.segments.model.graph_names import nested_nodes
from brisk.segments.model.model_file import nested_tensors
from brisk.segments.onnxruntime import onnxruntime

Shape = tuple[int, ...]
"""The shape of a hidden output without its batch: [channels, height, width], [positions, features]
or [features]. Empty: a whole model's inputs, of any sizes."""

Given = np.ndarray | Mapping[str, np.ndarray]
"""The input of an exit: a hidden output, float32 [rows, *shape], or a model's inputs by name."""


class Judge(str, Enum):
    """The judge that decides whether a prediction can be used.

    ``SELECTOR`` is learned (GATI, section 3.1) and stands behind a distance gate. ``SOFTMAX`` is
    the greatest probability of a class, the margins are the greatest less the second greatest;
    they may do without the gate, since predictors trained with outliers are unsure of these.
    ``TYPICAL`` judges values that are no classes by how like those of the data they are.
    """

    SELECTOR = "selector"
    SOFTMAX = "softmax"
    MARGIN = "margin"
    GATED_MARGIN = "gated-margin"
    TYPICAL = "typical"

    @property
    def is_gated(self) -> bool:
        return self in (Judge.SELECTOR, Judge.GATED_MARGIN)


GATED = tuple(judge for judge in Judge if judge.is_gated)
"""The judges that are candidates by default: without the gate other data sets and noise are
answered wrongly several times as often, and the mean latency is a sixth shorter (record 25)."""


OF_CLASSES = tuple(judge for judge in Judge if judge is not Judge.TYPICAL)

OPSET, IR_VERSION = 17, 8
INPUT, LOGITS, SCORE, NEAR = "hidden", "logits", "score", "near"

OWN_INPUT = "brisk.input."
"""The prefix of the names of a whole model's inputs if the exit reads all of them."""

OTHER = "brisk.other."
"""The prefix of the names of a whole model's other outputs; a number follows."""

FLOOR_OF_WHOLE = "brisk.floor"
"""The name of the weight with a whole model's floor, below which no score counts."""

OPERATORS = frozenset(
    {
        *("Transpose", "Unsqueeze", "Squeeze", "Flatten", "Concat", "Gather", "TopK", "Where"),
        *("AveragePool", "Conv", "MatMul", "Gemm", "Relu", "Sigmoid", "Softmax", "LogSoftmax"),
        *("Add", "Sub", "Mul", "Div", "Sqrt", "Log", "Max", "Clip", "ArgMax"),
        *("ReduceMean", "ReduceMax", "ReduceSum", "ReduceSumSquare"),
        *("LessOrEqual", "GreaterOrEqual", "And", "Not", "IsNaN"),
    }
)
"""The operators that exits are made of."""

_PLAIN_DOMAINS = frozenset({"", "ai.onnx"})
_DOMAINS = _PLAIN_DOMAINS | {"com.microsoft", "ai.onnx.ml"}

_RANGED_BY_RUN = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}
)
"""The operators that quantise by the range of all rows of a run: one row of great values would
take the others' digits."""

LARGEST_HIDDEN_BYTES = 1 << 30
"""The most bytes of one row of a hidden output."""


@dataclass(frozen=True, slots=True, eq=False)
class ExitEvaluation:
    """The result of an exit evaluation for each row."""

    scores: np.ndarray
    """The scores, float32 [rows], in 0..1."""
    near: np.ndarray
    """Whether each row is in the distribution of the training data, bool [rows]."""
    logits: np.ndarray
    """The logits of the classes, float32 [rows, classes]."""
    others: tuple[np.ndarray, ...] = ()
    """A whole model's other outputs, [rows, ...] each."""


class AnswerForm(NamedTuple):
    """The form of an exit's answer: logits [rows, ..., ``classes``] of ``rank`` dimensions, and
    the number of ``others``."""

    classes: int
    rank: int = 2
    others: int = 0


ExitEvaluator = Callable[[Given], ExitEvaluation]


class ExitModel:
    """Evaluates an exit's ONNX model. Any thread may call it.

    A row's result depends on no other row: a whole model that quantises by the range of each run,
    or whose batch is of one row, is run for each row.
    """

    __slots__ = ("_form", "_outputs", "_run", "_session", "is_by_row")

    def __init__(
        self,
        data: bytes,
        shape: Shape,
        form: AnswerForm,
        threads: int = 1,
        *,
        is_whole: bool = False,
    ) -> None:
        """``is_whole``: it is a whole model, of any operators that ONNX Runtime has.

        Raises DamagedFileError if ``data`` is no exit that answers in ``form`` in ``shape``.
        """
        graph = _check(data, shape, form, is_whole)
        self._session = _open(data, threads)
        self._run = self._session._sess.run
        self.is_by_row = is_whole and (
            self._session.get_inputs()[0].shape[:1] == [1] or _is_ranged_by_run(graph)
        )
        """Whether it is run for each row."""
        self._form = form
        self._outputs = [LOGITS, SCORE, NEAR, *_others(form)]
        if not shape:  # no sizes to try it with are known
            return
        try:
            self(np.zeros((1, *shape), np.float32))
        except Exception as error:
            raise DamagedFileError(f"an exit cannot be evaluated: {error}") from error

    def __call__(self, hidden: Given) -> ExitEvaluation:
        if isinstance(hidden, np.ndarray):
            rows, feeds = len(hidden), {INPUT: hidden}
        else:
            rows = len(next(iter(hidden.values())))
            feeds = {OWN_INPUT + name: array for name, array in hidden.items()}
        if self.is_by_row and rows > 1:
            return self._one_by_one(hidden, rows)
        logits, scores, near, *others = self._run(self._outputs, feeds, None)
        classes, rank, _ = self._form
        is_fit = logits.ndim == rank and (len(logits), logits.shape[-1]) == (rows, classes)
        is_fit = is_fit and scores.shape == near.shape == (rows,)
        if not is_fit or any(each.shape[:1] != (rows,) for each in others):
            shapes = [list(each.shape) for each in (logits, scores, near, *others)]
            raise ValueError(
                f"an exit gave for {rows} rows {', '.join(map(str, shapes))}; expected "
                f"[{rows}, {classes}] in {rank} dimensions, and {rows} rows in each"
            )
        return ExitEvaluation(scores, near, logits, tuple(others))

    def _one_by_one(self, hidden: Given, rows: int) -> ExitEvaluation:
        """Evaluate the model for one row at a time."""
        parts = []
        for row in range(rows):
            one: Given
            if isinstance(hidden, np.ndarray):
                one = np.ascontiguousarray(hidden[row : row + 1])
            else:
                one = {name: np.ascontiguousarray(a[row : row + 1]) for name, a in hidden.items()}
            parts.append(self(one))
        scores, near, logits = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("scores", "near", "logits")
        )
        others = zip(*(part.others for part in parts), strict=True)
        return ExitEvaluation(scores, near, logits, tuple(np.concatenate(each) for each in others))


def _others(form: AnswerForm) -> list[str]:
    return [f"{OTHER}{number}" for number in range(form.others)]


def given(shape: Shape, inputs: Mapping[str, np.ndarray]) -> Given:
    """Return what a whole model as an exit reads: all ``inputs``, or the one with a ``shape``."""
    ready = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    return next(iter(ready.values())) if shape else ready


def parse(data: bytes, is_whole: bool = False) -> ModelProto:
    """Return the ONNX model in ``data``. Raises DamagedFileError unless it is one of plain
    operators, with all its weights; a model that ``is_whole`` may have any operators of ONNX's and
    ONNX Runtime's own, and branches and loops of these."""
    try:
        model = ModelProto.FromString(data)
    except DecodeError as error:
        raise DamagedFileError(f"an exit is no ONNX model: {error}") from error
    graph = model.graph
    domains = {entry.domain: entry.version for entry in model.opset_import}
    if not is_whole and (
        set(domains) - _PLAIN_DOMAINS or max(domains.values(), default=99) > OPSET
    ):
        raise DamagedFileError(f"an exit is of operator sets {domains}, expected up to {OPSET}")
    for node in (*graph.node, *nested_nodes(model)):
        is_known = node.op_type in OPERATORS and node.domain in _PLAIN_DOMAINS
        if not (node.domain in _DOMAINS if is_whole else is_known):
            raise DamagedFileError(f"an exit has operator '{node.domain}:{node.op_type}'")
    if model.functions or graph.sparse_initializer or model.training_info:
        raise DamagedFileError("an exit has more than a graph of nodes and weights")
    tensors = (*graph.initializer, *nested_tensors(model))
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in tensors):
        raise DamagedFileError("an exit has weights in another file")
    return model


def _is_ranged_by_run(graph: GraphProto) -> bool:
    """Whether a node, of the graph or of a branch or loop in it, is ``_RANGED_BY_RUN``."""
    return any(
        node.op_type in _RANGED_BY_RUN
        or any(
            _is_ranged_by_run(inner)
            for attribute in node.attribute
            for inner in (attribute.g, *attribute.graphs)
        )
        for node in graph.node
    )


def _check(data: bytes, shape: Shape, form: AnswerForm, is_whole: bool) -> GraphProto:
    """Return the graph in ``data``, whose sizes, inputs and outputs are checked before memory is
    taken. Raises DamagedFileError."""
    graph = parse(data, is_whole).graph
    fewest = 0 if is_whole else 1
    classes, rank, _ = form
    if not fewest <= len(shape) <= 3 or classes < 1 or not all(size >= 1 for size in shape):
        raise DamagedFileError(f"an exit of {classes} classes in {list(shape)}")
    if 4 * math.prod(shape) > LARGEST_HIDDEN_BYTES:
        raise DamagedFileError(f"an exit in {list(shape)} is too large")
    expected = {
        INPUT: (TensorProto.FLOAT, list(shape)),
        LOGITS: (TensorProto.FLOAT, [*[0] * (rank - 2), classes]),
        SCORE: (TensorProto.FLOAT, []),
        NEAR: (TensorProto.BOOL, []),
    }
    if not shape:
        del expected[INPUT]
    inputs = graph.input if shape else ()
    found = {info.name: _form(info) for info in (*inputs, *graph.output)}
    others = {name: found.pop(name, None) for name in _others(form)}
    if found != expected or None in others.values() or len(inputs) != len(shape[:1]):
        raise DamagedFileError(
            f"an exit reads and gives {_words(found)}; expected {_words(expected)}"
        )
    return graph


def _form(info: ValueInfoProto) -> tuple[int, list[int]]:
    """Return the element type, and the sizes without that of the rows."""
    kind = info.type.tensor_type
    return kind.elem_type, [dim.dim_value for dim in kind.shape.dim[1:]]


def _words(found: dict[str, tuple[int, list[int]]]) -> str:
    return ", ".join(f"'{name}' {['rows', *sizes]}" for name, (_, sizes) in found.items())


def _open(data: bytes, threads: int) -> Any:
    library = onnxruntime()
    options = library.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    try:
        return library.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise DamagedFileError(f"ONNX Runtime cannot load an exit: {error}") from error
