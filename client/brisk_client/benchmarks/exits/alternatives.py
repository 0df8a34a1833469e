"""What one could do instead of learned caches: a smaller model, an int8 one (GATI, Fig. 6)."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from brisk.exits.base_model import BaseModel, load_base
from brisk.exits.data.samples import Samples
from brisk_client.benchmarks.exits.data import ExitCase
from brisk_client.benchmarks.exits.runs import Other

CALIBRATED_ROWS = 200


def alternatives(case: ExitCase) -> dict[str, Other]:
    """By name; without ONNX Runtime, which quantises, only the smaller model."""
    found: dict[str, Other] = {}
    if case.smaller is not None:
        found["a smaller model (14 layers)"] = _ours(case.smaller())
    try:
        quantised = _quantised(case.model, case.training)
        found["int8, by ONNX Runtime"] = _theirs(quantised)
        found["float32, by ONNX Runtime"] = _theirs(case.model)
    except ImportError:
        pass
    return found


def _ours(model: Path) -> Other:
    base = load_base(model)
    return lambda inputs: _classes(base, inputs)


def _classes(base: BaseModel, inputs: Mapping[str, np.ndarray]) -> list[int]:
    found: list[int] = next(iter(base.run(inputs).values())).argmax(1).tolist()
    return found


def _theirs(model: Path) -> Other:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"])
    output = session.get_outputs()[0].name

    def classes(inputs: Mapping[str, np.ndarray]) -> list[int]:
        (scores,) = session.run([output], dict(inputs))
        found: list[int] = np.argmax(scores, 1).tolist()
        return found

    return classes


def _quantised(model: Path, training: Samples) -> Path:
    """Static int8 quantisation, weights by channel, calibrated on training inputs; made once."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Rows(CalibrationDataReader):  # type: ignore[misc]  # untyped base
        def __init__(self) -> None:
            self._rows = _single_rows(training)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._rows, None)

    target = model.with_name("int8.onnx")
    if not target.exists():
        prepared = model.with_name("prepared.onnx")
        logging.getLogger().setLevel(logging.ERROR)
        with contextlib.redirect_stdout(io.StringIO()):
            quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
            quantize_static(
                *(str(prepared), str(target), Rows()),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        prepared.unlink()
    return target


def _single_rows(training: Samples) -> Iterator[dict[str, np.ndarray]]:
    for row in range(min(CALIBRATED_ROWS, len(training))):
        yield dict(training.take(slice(row, row + 1)).inputs)
