"""The whole model in int8 as a look-up, which stands in front of the exact one.

It reads the model's own input. Where the two best classes are clearly apart its answer is mostly
the exact model's; what it is not sure of goes on to that. Of values that are no classes it is as
sure as they are like those of the data.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from brisk.exits.files.container import DamagedFileError
from brisk.exits.heads.lookup_model import (
    FLOOR_OF_WHOLE,
    INPUT,
    LOGITS,
    NEAR,
    OWN_INPUT,
    SCORE,
    LookUpModel,
    Shape,
)
from brisk.exits.model_graph import ModelGraph, can_be_fed, readable
from brisk.exits.scores import ScoreForm, Scores

CALIBRATED_ROWS = 200
"""Of data that fits predictors: from these the ranges of all values are taken."""

LARGEST_BYTES = 1 << 30
"""Of a model: what is larger would lie in a file of caches, and in memory, twice."""

AXES_ARE_INPUTS = 13
"""Operator set from which on ReduceSum reads its axes."""

LEAST_OPERATOR_SET = 11


@dataclass(frozen=True, slots=True, eq=False)
class Typical:
    """Where values lie: ``centre`` and ``spread`` of each, float32 [values]."""

    centre: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Typical:
        """Of the data's, [rows, values]. What hardly changes is as far apart as the others."""
        spread = values.std(0)
        least = 1e-3 * float(np.median(spread)) or 1e-6
        return cls(values.mean(0), np.maximum(spread, np.float32(least)))


@dataclass(frozen=True, slots=True, eq=False)
class Quantised:
    """``model`` reads ``INPUT`` float32 [rows, *shape], or, where that is empty, all inputs of the
    model under ``OWN_INPUT``, and gives ``LOGITS`` [rows, classes]."""

    model: ModelProto
    shape: Shape
    classes: int

    def look_up(self, floor: float, typical: Typical | None = None) -> bytes:
        """With the score of ``Judge.MARGIN``, or of ``Judge.TYPICAL``, which is 0 below ``floor``.

        That is 1 / (1 + the mean square of (value - centre) / spread).
        """
        made = ModelProto()
        made.CopyFrom(self.model)
        graph = made.graph
        own = ("", "ai.onnx")
        version = next(each.version for each in made.opset_import if each.domain in own)
        scoring = _MARGIN if typical is None else _TYPICAL
        ranks = {
            info.name: len(info.type.tensor_type.shape.dim)
            for info in graph.input
            if info.type.tensor_type.elem_type == TensorProto.FLOAT
        }
        nodes = list(_judging(version, ranks, scoring))
        constants = {
            "brisk.two": np.array([2], np.int64),
            "brisk.halves": np.array([[1], [-1]], np.float32),
            "brisk.mean": np.full((self.classes, 1), 1 / self.classes, np.float32),
            "brisk.one": np.array(1, np.float32),
            "brisk.rows": np.array([-1], np.int64),
            "brisk.nothing": np.array(0, np.float32),
            FLOOR_OF_WHOLE: np.array(floor, np.float32),
            **{f"brisk.inner{rank}": np.arange(1, rank) for rank in ranks.values()},
        }
        if typical is not None:
            constants["brisk.centre"] = typical.centre.astype(np.float32)
            constants["brisk.spread"] = typical.spread.astype(np.float32)
        read = {name for node in nodes for name in node.input}
        graph.node.extend(nodes)
        graph.initializer.extend(
            numpy_helper.from_array(array, name)
            for name, array in constants.items()
            if name in read
        )
        graph.output.extend(
            [
                helper.make_tensor_value_info(SCORE, TensorProto.FLOAT, ["rows"]),
                helper.make_tensor_value_info(NEAR, TensorProto.BOOL, ["rows"]),
            ]
        )
        data: bytes = made.SerializeToString()
        return data


_Steps = tuple[tuple[str, list[str], str, dict[str, Any]], ...]
"""Operators with what they read, make, and their attributes."""

_MARGIN: _Steps = (
    ("Softmax", [LOGITS], "brisk.shares", {"axis": 1}),
    ("TopK", ["brisk.shares", "brisk.two"], "brisk.greatest", {"axis": 1}),
    ("MatMul", ["brisk.greatest", "brisk.halves"], "brisk.column", {}),
    ("Reshape", ["brisk.column", "brisk.rows"], "brisk.sure", {}),
)

_TYPICAL: _Steps = (
    ("Sub", [LOGITS, "brisk.centre"], "brisk.apart", {}),
    ("Div", ["brisk.apart", "brisk.spread"], "brisk.relative", {}),
    ("Mul", ["brisk.relative", "brisk.relative"], "brisk.squares", {}),
    ("MatMul", ["brisk.squares", "brisk.mean"], "brisk.column", {}),
    ("Reshape", ["brisk.column", "brisk.rows"], "brisk.distance", {}),
    ("Add", ["brisk.distance", "brisk.one"], "brisk.farness", {}),
    ("Reciprocal", ["brisk.farness"], "brisk.sure", {}),
)


def _judging(version: int, ranks: Mapping[str, int], scoring: _Steps) -> Iterator[NodeProto]:
    """From logits to score and nearness: a row of inputs that are not all numbers is not near, for
    quantising makes numbers of anything. ``ranks``: of the inputs of numbers that may be none."""
    every, steps = "brisk.sure", [*scoring]
    for name, rank in ranks.items():
        own, total = f"brisk.{name}", name
        if rank > 1:
            axes: dict[str, Any] = (
                {} if version >= AXES_ARE_INPUTS else {"axes": [*range(1, rank)]}
            )
            reads = [name] if axes else [name, f"brisk.inner{rank}"]
            total = f"{own}.sum"
            steps.append(("ReduceSum", reads, total, {"keepdims": 0, **axes}))
        steps.append(("Sub", [total, total], f"{own}.finite", {}))
        steps.append(("Add", [f"{own}.finite", every], f"{own}.every", {}))
        every = f"{own}.every"
    for operator, inputs, output, attributes in (
        *steps,
        ("IsNaN", [every], "brisk.is_none", {}),
        ("Not", ["brisk.is_none"], NEAR, {}),
        ("Less", ["brisk.sure", FLOOR_OF_WHOLE], "brisk.is_low", {}),
        ("Or", ["brisk.is_low", "brisk.is_none"], "brisk.is_out", {}),
        ("Where", ["brisk.is_out", "brisk.nothing", "brisk.sure"], SCORE, {}),
    ):
        outputs = [output, "brisk.places"] if operator == "TopK" else [output]
        yield helper.make_node(operator, inputs, outputs, **attributes)


def quantised(graph: ModelGraph, scores: Scores, inputs: Mapping[str, np.ndarray]) -> Quantised:
    """In int8 by ONNX Runtime, weights by channel.

    Where the model reads one float32 tensor of fixed rows all is quantised, and ``inputs`` say
    the ranges; else products of matrices are, with ranges found in each run. Raises ValueError in
    words where the model has no such form: not all its inputs have rows, it is too large, or ONNX
    Runtime cannot do it.
    """
    shape = readable(graph) or ()
    if not shape and not can_be_fed(graph):
        raise ValueError("it reads something else than tensors of numbers with rows")
    if graph.path.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"it has more than {LARGEST_BYTES >> 20} MiB")
    try:
        with tempfile.TemporaryDirectory() as folder, quiet():
            source, place = _until(graph, scores), Path(folder)
            if shape:
                ((name, rows),) = inputs.items()
                count = min(CALIBRATED_ROWS, len(rows))
                calibrated = [rows[row : row + 1] for row in range(count)]
                made = static_int8(source, place, name, calibrated)
            else:
                made = _dynamic_int8(source, place)
    except Exception as error:  # whatever a quantiser makes of a model
        raise ValueError(f"ONNX Runtime cannot quantise it: {error!r:.200}") from error
    names = {each: f"brisk.own.{each}" for each in (INPUT, LOGITS, SCORE, NEAR)}
    names[scores.value] = _OWN
    read = [each.name for each in graph.inputs]
    _rename(made, {**names, **{each: INPUT if shape else OWN_INPUT + each for each in read}})
    made.graph.node.extend(_as_logits(scores.form))
    del made.graph.output[:]
    form = ["rows", scores.classes]
    made.graph.output.append(helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, form))
    found = Quantised(made, shape, scores.classes)
    try:
        LookUpModel(found.look_up(0.0), shape, scores.classes, is_whole=True)
    except DamagedFileError as error:
        raise ValueError(f"ONNX Runtime cannot run it in int8: {error!s:.200}") from error
    return found


_OWN = "brisk.scores"


def _until(graph: ModelGraph, scores: Scores) -> ModelProto:
    """From the inputs to the scores, weights inside."""
    model = onnx.load(str(graph.path))
    domains = [each for each in model.opset_import if each.domain in ("", "ai.onnx")]
    if domains[0].version < LEAST_OPERATOR_SET:
        model = onnx.version_converter.convert_version(model, LEAST_OPERATOR_SET)
    if scores.value not in {info.name for info in model.graph.output}:
        model.graph.output.append(helper.make_tensor_value_info(scores.value, 1, None))
    del model.graph.value_info[:]
    model = onnx.shape_inference.infer_shapes(model)
    read = [each.name for each in graph.inputs]
    return onnx.utils.Extractor(model).extract_model(read, [scores.value])


def static_int8(model: ModelProto, folder: Path, name: str, rows: list[np.ndarray]) -> ModelProto:
    """``model``, weights by channel, with the ranges of ``rows`` of its input ``name``.

    Works in ``folder``. Raises whatever ONNX Runtime's quantiser does.
    """
    source, prepared, target = (folder / f"{each}.onnx" for each in ("source", "prepared", "int8"))
    onnx.save(model, source)
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        *(str(prepared), str(target), _RangeRows(name, rows)),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        # products of 8 bits each saturate where a processor has no instruction for their sum
        reduce_range=not _has_dot_products(),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return onnx.load(str(target))


def _dynamic_int8(model: ModelProto, folder: Path) -> ModelProto:
    source, prepared, target = (folder / f"{each}.onnx" for each in ("source", "prepared", "int8"))
    onnx.save(model, source)
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    quantize_dynamic(
        *(str(prepared), str(target), ["MatMul", "Gemm"]),
        per_channel=True,
        reduce_range=not _has_dot_products(),
        weight_type=QuantType.QInt8,
    )
    made = onnx.load(str(target))
    if not any(node.op_type in _IN_INT8 for node in made.graph.node):
        raise ValueError("it has no products of matrices with weights")
    return made


_IN_INT8 = frozenset({"MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"})


class _RangeRows(CalibrationDataReader):  # type: ignore[misc]  # untyped base
    def __init__(self, name: str, rows: list[np.ndarray]) -> None:
        self._rows = ({name: np.ascontiguousarray(row)} for row in rows)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rows, None)


def _as_logits(form: ScoreForm) -> Iterator[NodeProto]:
    """Scores as numbers of which the softmax is the model's distribution."""
    operator = "Log" if form is ScoreForm.PROBABILITIES else "Identity"
    yield helper.make_node(operator, [_OWN], [LOGITS])


def _rename(model: ModelProto, names: Mapping[str, str]) -> None:
    graph = model.graph
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for named in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        named.name = names.get(named.name, named.name)
    for info in graph.input:
        info.type.tensor_type.shape.dim[0].dim_param = "rows"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The quantiser says on standard output, and warns of, what users cannot change."""
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)


@cache
def _has_dot_products() -> bool:
    """Whether the processor sums products of 8 bits in 32 (VNNI, Arm's dot products)."""
    try:
        text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return False
    return any(flag in text.split() for flag in ("avx512_vnni", "avx_vnni", "asimddp"))


def memory_of(model: bytes, shape: Shape) -> int:
    """Of a look-up and what a call of it needs besides."""
    return 2 * len(model) + 4 * math.prod(shape)
