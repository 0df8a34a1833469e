"""The whole model in int8, by ONNX Runtime's quantiser, as an approximate model."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from brisk.exits.cascade import INT8
from brisk.exits.data.collecting import COMPARED_ROWS
from brisk.exits.files.container import DamagedFileError
from brisk.exits.heads.exit_model import given
from brisk.exits.learning.approximate import (
    LARGEST_BYTES,
    ApproximateModel,
    Typical,
    as_approximate,
    shape_of_input,
    until_scores,
)
from brisk.exits.model_graph import ModelGraph
from brisk.exits.scores import ScoreForm, Scores, as_probabilities

CALIBRATED_ROWS = 200
"""Rows of the data that fits predictors from which the ranges of all values are taken."""


def quantised(
    graph: ModelGraph,
    scores: Scores,
    inputs: Mapping[str, np.ndarray],
    folder: Path | None = None,
) -> ApproximateModel:
    """Return the model in int8 by ONNX Runtime, weights quantised by channel.

    Several copies of the model lie in ``folder`` meanwhile; None: in the system's for temporary
    files.

    If the model reads one float32 tensor, of fixed rows or with convolutions, all is quantised,
    with the ranges of ``inputs``; else matrix products are, with ranges found in each run. Raises
    ValueError that says why the model has no such form: not all its inputs have rows, it is too
    large, ONNX Runtime cannot do it, or a row's answer depends on the others of its batch.
    """
    shape = shape_of_input(graph)
    if graph.file_bytes > LARGEST_BYTES:
        raise ValueError(f"it has more than {LARGEST_BYTES >> 20} MiB")
    try:
        with _workplace(folder) as place, quiet():
            source = until_scores(graph, scores)
            if shape or _is_of_images(graph):
                ((name, rows),) = inputs.items()
                count = min(CALIBRATED_ROWS, len(rows))
                calibrated = [rows[row : row + 1] for row in range(count)]
                model = static_int8(source, place, name, calibrated)
            else:
                model = _dynamic_int8(source, place)
    except Exception as error:  # whatever a quantiser makes of a model
        raise ValueError(f"ONNX Runtime cannot quantise it: {error!r:.200}") from error
    inputs_by_name = {each.name: each.name for each in graph.needed}
    try:
        approximate = as_approximate(INT8, model, graph, scores, inputs_by_name)
    except DamagedFileError as error:
        raise ValueError(f"ONNX Runtime cannot run it in int8: {error!s:.200}") from error
    _check_batches(approximate, scores, inputs)
    return approximate


@contextlib.contextmanager
def _workplace(folder: Path | None) -> Iterator[Path]:
    """Make a folder for files of the quantiser, its own temporary ones too, and remove it at the
    end. One in ``folder`` has always the same name, so that what a killed process leaves is
    removed with ``folder`` or by the next call."""
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            yield Path(made)
        return
    place = folder / "quantising"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    before = tempfile.tempdir
    tempfile.tempdir = str(place)
    try:
        yield place
    finally:
        tempfile.tempdir = before
        shutil.rmtree(place, ignore_errors=True)


GREAT = 1000
"""The factor of a row that other rows must not notice."""

STEPS = 0.1
"""The share of a row's greatest answer by which steps of eight bits may move all its answers."""


def _check_batches(
    approximate: ApproximateModel, scores: Scores, inputs: Mapping[str, np.ndarray]
) -> None:
    """Raise ValueError if a row's answer depends on the others of its batch, one of which has
    great values."""
    if scores.tolerance is None:
        own_form, typical = ScoreForm.LOGITS, None
    else:
        own_form, typical = ScoreForm.VALUES, Typical(np.zeros(1), np.ones(1))
    evaluate = approximate.opened(approximate.exit_model(0.0, typical))

    def answers(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        return as_probabilities(evaluate(given(approximate.shape, rows)).logits, own_form)

    some = {name: array[:COMPARED_ROWS] for name, array in inputs.items()}
    great = {
        name: array[:1] * (array.dtype.type(GREAT) if array.dtype.kind == "f" else 1)
        for name, array in some.items()
    }
    together = answers({name: np.concatenate([some[name], great[name]]) for name in some})
    for row, beside in enumerate(together[:-1]):
        (alone,) = answers({name: array[row : row + 1] for name, array in some.items()})
        most = STEPS * np.abs(alone).max(initial=0.0)
        if not np.allclose(alone, beside, rtol=0.0, atol=most, equal_nan=True):
            raise ValueError("it mixes the rows of a batch")


def _is_of_images(graph: ModelGraph) -> bool:
    """Whether the model reads one float32 tensor, of any sizes, and has convolutions."""
    kinds = [each.type.dtype for each in graph.needed]
    return kinds == ["float32"] and any(node.op_type == "Conv" for node in graph.graph.node)


def static_int8(model: ModelProto, folder: Path, name: str, rows: list[np.ndarray]) -> ModelProto:
    """Return ``model`` in int8, weights by channel, with the ranges of ``rows`` of its input
    ``name``.

    Works in ``folder``. Raises whatever ONNX Runtime's quantiser raises.
    """
    source, prepared, target = (folder / f"{each}.onnx" for each in ("source", "prepared", "int8"))
    onnx.save(model, source)
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        model_input=str(prepared),
        model_output=str(target),
        calibration_data_reader=_RangeRows(name, rows),
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
        model_input=str(prepared),
        model_output=str(target),
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        reduce_range=not _has_dot_products(),
        weight_type=QuantType.QInt8,
    )
    int8 = onnx.load(str(target))
    if not any(node.op_type in _IN_INT8 for node in int8.graph.node):
        raise ValueError("it has no products of matrices with weights")
    return int8


_IN_INT8 = frozenset({"MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"})


class _RangeRows(CalibrationDataReader):  # type: ignore[misc]  # untyped base
    def __init__(self, name: str, rows: list[np.ndarray]) -> None:
        self._rows = ({name: np.ascontiguousarray(row)} for row in rows)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rows, None)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the quantiser's output and warnings, about which users can do nothing."""
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
