"""A learned cache's look-up as an ONNX model: checked, and asked through ONNX Runtime.

The model reads ``hidden`` float32 [rows, *shape], or what a whole model reads, and gives
``logits`` float32 [rows, classes], ``score`` float32 [rows] in 0..1, and ``near`` bool [rows]:
whether the row is near the training data. A whole model of values may have logits of more
dimensions, and other outputs, ``brisk.other.0`` and so on, as the model has them. It comes from a
file that anybody may have written, so it consists of plain operators only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, ValueInfoProto

from brisk.exits.files.container import DamagedFileError
from brisk.segments.onnxruntime import onnxruntime

Shape = tuple[int, ...]
"""Of a hidden output without its batch: [channels, height, width], [positions, features] or
[features]. Empty: what a whole model reads, of any sizes."""

Given = np.ndarray | Mapping[str, np.ndarray]
"""What is looked up: a hidden output, float32 [rows, *shape], or a model's inputs by name."""


class Judge(str, Enum):
    """What says whether a prediction can be used.

    ``SELECTOR``: a learned one (GATI, section 3.1), behind a distance gate. The others are of the
    distribution over the classes: its greatest share, and that less the one next to it. They may
    do without the gate, for predictors that outliers were shown to are unsure of these.
    ``TYPICAL``: how near a row's values are to those of the data, where they are no classes.
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
"""What is asked unless more is wanted: without the gate other data sets and noise are answered
wrongly several times as often, and the mean is a sixth shorter (record 25)."""


OF_CLASSES = tuple(judge for judge in Judge if judge is not Judge.TYPICAL)

OPSET, IR_VERSION = 17, 8
INPUT, LOGITS, SCORE, NEAR = "hidden", "logits", "score", "near"

OWN_INPUT = "brisk.input."
"""Before the names of a whole model's inputs where the look-up reads all of them."""

OTHER = "brisk.other."
"""Before the numbers of a whole model's other outputs."""

FLOOR_OF_WHOLE = "brisk.floor"
"""Where the look-up of a whole model keeps what no score may be below."""

OPERATORS = frozenset(
    {
        *("Transpose", "Unsqueeze", "Squeeze", "Flatten", "Concat", "Gather", "TopK", "Where"),
        *("AveragePool", "Conv", "MatMul", "Gemm", "Relu", "Sigmoid", "Softmax", "LogSoftmax"),
        *("Add", "Sub", "Mul", "Div", "Sqrt", "Log", "Max", "Clip", "ArgMax"),
        *("ReduceMean", "ReduceMax", "ReduceSum", "ReduceSumSquare"),
        *("LessOrEqual", "GreaterOrEqual", "And", "Not", "IsNaN"),
    }
)
"""What look-ups are made of."""

_PLAIN_DOMAINS = frozenset({"", "ai.onnx"})
_DOMAINS = _PLAIN_DOMAINS | {"com.microsoft", "ai.onnx.ml"}

LARGEST_HIDDEN_BYTES = 1 << 30
"""Of one row."""


@dataclass(frozen=True, slots=True, eq=False)
class ExitEvaluation:
    """What a look-up says of each row: ``scores`` float32 [rows], ``near`` bool [rows], whether it
    is near the training data, ``logits`` float32 [rows, classes], and a whole model's ``others``,
    [rows, ...] each."""

    scores: np.ndarray
    near: np.ndarray
    logits: np.ndarray
    others: tuple[np.ndarray, ...] = ()


class AnswerForm(NamedTuple):
    """What a look-up answers: logits [rows, ..., ``classes``] of ``rank`` dimensions, and so many
    ``others``."""

    classes: int
    rank: int = 2
    others: int = 0


ExitEvaluator = Callable[[Given], ExitEvaluation]


class ExitModel:
    """Float32 [rows, *shape] to what the ONNX model says. Any thread may call it."""

    __slots__ = ("_form", "_is_single", "_outputs", "_run", "_session")

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

        Raises DamagedFileError where ``data`` is no look-up that answers in ``form`` in ``shape``.
        """
        _check(data, shape, form, is_whole)
        self._session = _open(data, threads)
        self._run = self._session._sess.run
        self._is_single = is_whole and self._session.get_inputs()[0].shape[:1] == [1]
        self._form = form
        self._outputs = [LOGITS, SCORE, NEAR, *_others(form)]
        if not shape:  # nobody knows what sizes suit it
            return
        try:
            self(np.zeros((1, *shape), np.float32))
        except Exception as error:
            raise DamagedFileError(f"a look-up cannot be computed: {error}") from error

    def __call__(self, hidden: Given) -> ExitEvaluation:
        if isinstance(hidden, np.ndarray):
            rows, feeds = len(hidden), {INPUT: hidden}
        else:
            rows = len(next(iter(hidden.values())))
            feeds = {OWN_INPUT + name: array for name, array in hidden.items()}
        if self._is_single and rows > 1:
            return self._one_by_one(hidden, rows)
        logits, scores, near, *others = self._run(self._outputs, feeds, None)
        classes, rank, _ = self._form
        is_fit = logits.ndim == rank and (len(logits), logits.shape[-1]) == (rows, classes)
        is_fit = is_fit and scores.shape == near.shape == (rows,)
        if not is_fit or any(each.shape[:1] != (rows,) for each in others):
            shapes = [list(each.shape) for each in (logits, scores, near, *others)]
            raise ValueError(
                f"a look-up of {rows} rows gave {', '.join(map(str, shapes))}; expected "
                f"[{rows}, {classes}] in {rank} dimensions, and {rows} rows in each"
            )
        return ExitEvaluation(scores, near, logits, tuple(others))

    def _one_by_one(self, hidden: Given, rows: int) -> ExitEvaluation:
        """Of a model that takes one row at a time."""
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
    """What a whole model's look-up takes of ``inputs``: the lone one where it has a ``shape``."""
    ready = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    return next(iter(ready.values())) if shape else ready


def parse(data: bytes, is_whole: bool = False) -> ModelProto:
    """Raises DamagedFileError where ``data`` is no ONNX model of plain operators; one that
    ``is_whole`` may have others of ONNX's and ONNX Runtime's own."""
    try:
        model = ModelProto.FromString(data)
    except DecodeError as error:
        raise DamagedFileError(f"a look-up is no ONNX model: {error}") from error
    graph = model.graph
    domains = {entry.domain: entry.version for entry in model.opset_import}
    if not is_whole and (
        set(domains) - _PLAIN_DOMAINS or max(domains.values(), default=99) > OPSET
    ):
        raise DamagedFileError(f"a look-up is of operator sets {domains}, expected up to {OPSET}")
    for node in graph.node:
        is_known = node.op_type in OPERATORS and node.domain in _PLAIN_DOMAINS
        if not (node.domain in _DOMAINS if is_whole else is_known):
            raise DamagedFileError(f"a look-up has operator '{node.domain}:{node.op_type}'")
    if model.functions or graph.sparse_initializer or model.training_info:
        raise DamagedFileError("a look-up has more than a graph of nodes and weights")
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in graph.initializer):
        raise DamagedFileError("a look-up has weights in another file")
    return model


def _check(data: bytes, shape: Shape, form: AnswerForm, is_whole: bool) -> None:
    """Before any memory is taken for it."""
    graph = parse(data, is_whole).graph
    fewest = 0 if is_whole else 1
    classes, rank, _ = form
    if not fewest <= len(shape) <= 3 or classes < 1 or not all(size >= 1 for size in shape):
        raise DamagedFileError(f"a look-up of {classes} classes in {list(shape)}")
    if 4 * math.prod(shape) > LARGEST_HIDDEN_BYTES:
        raise DamagedFileError(f"a look-up in {list(shape)} is too large")
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
            f"a look-up reads and gives {_words(found)}; expected {_words(expected)}"
        )


def _form(info: ValueInfoProto) -> tuple[int, list[int]]:
    """Element type, and sizes without those of the rows."""
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
        raise DamagedFileError(f"ONNX Runtime cannot load a look-up: {error}") from error
