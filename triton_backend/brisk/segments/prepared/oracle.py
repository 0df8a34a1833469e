"""The answers to compare with: those of ONNX Runtime's own session of the whole file, all
defaults.

Brisk cuts models, optimizes each segment by itself and computes on weights in place. None of it
may change answers but for their last digits: a form that does is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from brisk.errors import InvalidModelError
from brisk.segments.model.model_file import read_model_file
from brisk.segments.onnxruntime import FOLDER_ENTRY, onnxruntime
from brisk.segments.values import to_array, to_ort_value

RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""The tolerances of answers: a share of each value, and of the tensor's largest one."""

NOISE = 8
"""The tolerance as a multiple of how far the whole model's answers move when its inputs change in
their last digits: networks that magnify those are alike no better."""

_LAST_DIGITS = 2**-22
"""The relative size of what float32 rounds off, with some room."""

Arrays = Mapping[str, np.ndarray]


class WholeModel:
    """One session of the unchanged file, which nothing but ONNX Runtime has touched."""

    def __init__(self, path: Path, threads: int) -> None:
        """Open the session. Raises InvalidModelError if the file cannot be read, or ONNX Runtime
        refuses it whole."""
        file = read_model_file(path)
        library = onnxruntime()
        options = library.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.add_session_config_entry(FOLDER_ENTRY, str(path.parent))
        file.give_weights(options, file.proto.graph)
        try:
            self._session = library.InferenceSession(
                file.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise InvalidModelError(
                f"{path}: in segments ONNX Runtime takes it, as a whole not: {error}"
            ) from error

    def answer(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Return the outputs that are tensors. ``inputs``: of all types but text.

        Raises what ONNX Runtime raises.
        """
        names = [each.name for each in self._session.get_outputs()]
        values = {name: to_ort_value(array) for name, array in inputs.items()}
        results = self._session._sess.run_with_ort_values(values, names, None)
        answers = zip(names, results, strict=True)
        return {name: to_array(value) for name, value in answers if value.is_tensor()}


def differing_output(whole: WholeModel, inputs: Arrays, found: Arrays) -> str | None:
    """Return the name of an output in ``found`` that is not what ``whole`` answers; None: there is
    none.

    Outputs that ``whole`` answers differently each time do not count.
    """
    expected = whole.answer(inputs)
    unlike = [
        name for name in expected if name in found and not are_alike(expected[name], found[name])
    ]
    if not unlike:
        return None
    again = whole.answer(inputs)
    nudged = whole.answer({name: _nudged(array) for name, array in inputs.items()})
    for name in unlike:
        if not are_alike(expected[name], again[name]):
            continue
        noise = _distance(expected[name], nudged[name])
        if not _distance(expected[name], found[name]) <= NOISE * noise:
            return name
    return None


def are_alike(expected: np.ndarray, found: np.ndarray) -> bool:
    """Whether ``found`` equals ``expected`` within RELATIVE and ABSOLUTE."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    if not _is_numeric(expected):
        return bool(np.array_equal(expected, found))
    one, other = expected.astype(np.float64), found.astype(np.float64)
    largest = np.abs(one[np.isfinite(one)]).max(initial=0)
    return bool(np.allclose(other, one, RELATIVE, ABSOLUTE * largest, equal_nan=True))


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference; infinity for unequal values that cannot be subtracted."""
    if one.shape != other.shape or not _is_numeric(one):
        return 0.0 if np.array_equal(one, other) else np.inf
    first, second = one.astype(np.float64), other.astype(np.float64)
    is_finite = np.isfinite(first)
    if not np.array_equal(first[~is_finite], second[~is_finite], equal_nan=True):
        return np.inf
    return float(np.abs(first - second)[is_finite].max(initial=0))


def _is_numeric(array: np.ndarray) -> bool:
    return array.dtype.kind not in "OUSc"


def _nudged(array: np.ndarray) -> np.ndarray:
    is_precise = array.dtype in (np.float32, np.float64)
    return array * array.dtype.type(1 + _LAST_DIGITS) if is_precise else array
