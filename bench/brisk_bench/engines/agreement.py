"""Answers as engines give them: made storable, stored, and compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

RTOL, ATOL = 1e-3, 1e-4

HALF = 1e-2
"""The relative and the absolute tolerance in half precision, which has three decimal digits."""


def load_arrays(file: Path | str) -> dict[str, np.ndarray]:
    """Return all arrays of an ``.npz`` by name."""
    with np.load(file) as arrays:
        return {name: arrays[name] for name in arrays.files}


def save_answers(file: Path | str, outputs: Iterable[Any]) -> None:
    """Put an engine's outputs into an ``.npz``, in their order."""
    np.savez(file, **{f"{index:04}": each for index, each in enumerate(storable(outputs))})


def load_answers(file: Path) -> list[np.ndarray]:
    """Return the answers that ``save_answers`` wrote."""
    return [array for _, array in sorted(load_arrays(file).items())]


def storable(outputs: Iterable[Any]) -> list[np.ndarray]:
    """Return the answers as plain arrays: a sequence's members one by one, texts and maps as
    texts, an optional output that is absent as an empty array."""
    arrays: list[np.ndarray] = []
    for value in outputs:
        if value is None:
            arrays.append(np.empty(0, np.float32))
        elif isinstance(value, (list, tuple)):
            arrays += storable(value)
        else:
            array = np.asarray(value)
            if array.dtype.kind == "V":  # ml_dtypes' own, as bfloat16
                array = array.astype(np.float32)
            arrays.append(array.astype(np.str_) if array.dtype.kind == "O" else array)
    return arrays


def difference(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Return the largest absolute difference of any element; infinite if the answers' shapes or
    texts differ, or if only one of two elements is no number."""
    if not _are_alike(found, expected):
        return float("inf")
    return max(map(_furthest, found, expected), default=0.0)


def _furthest(ours: np.ndarray, theirs: np.ndarray) -> float:
    if theirs.dtype.kind == "U":
        return 0.0 if np.array_equal(ours, theirs) else float("inf")
    one, other = ours.astype(np.complex128), theirs.astype(np.complex128)
    equal = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        apart = np.where(equal, 0.0, np.abs(one - other))
    return float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))


def agree(
    found: Sequence[np.ndarray], expected: Sequence[np.ndarray], *, scaled: bool = False
) -> bool:
    """Whether the answers are the same within RTOL and ATOL (HALF in half precision).

    ``scaled``: ATOL grows with the answer's own size, which random weights do not keep near one.
    """
    return _are_alike(found, expected) and all(
        _is_close(ours, theirs, scaled=scaled)
        for ours, theirs in zip(found, expected, strict=True)
    )


def agree_by_name(found: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> bool:
    """Whether named answers agree, scaled; none may be missing or added."""
    if found.keys() != expected.keys():
        return False
    return agree([np.asarray(found[name]) for name in expected], [*expected.values()], scaled=True)


def _are_alike(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    return len(found) == len(expected) and all(
        ours.shape == theirs.shape and (ours.dtype.kind == "U") == (theirs.dtype.kind == "U")
        for ours, theirs in zip(found, expected, strict=True)
    )


def _is_close(ours: np.ndarray, theirs: np.ndarray, *, scaled: bool) -> bool:
    if theirs.dtype.kind == "U":
        return bool(np.array_equal(ours, theirs))
    rtol, atol = (HALF, HALF) if theirs.dtype == np.float16 else (RTOL, ATOL)
    wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
    one, other = ours.astype(wide), theirs.astype(wide)
    if scaled:
        finite = np.abs(other[np.isfinite(other)])
        atol *= max(1.0, float(finite.max(initial=0.0)))
    return bool(np.allclose(one, other, rtol, atol, equal_nan=True))
