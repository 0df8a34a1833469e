"""Resize: torch's kernels for the usual modes, one matrix or gather an axis for the others.

Interpolation is separable, so an axis is resized at a time (operator Resize-19).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import FLOATS, MOVED, Rule, bind, takes

Targets = tuple[list[int], list[float]]
"""Sizes and scales of all axes."""


def _load_resize(problem: Problem) -> Kernel:
    how = Interpolation(
        *(problem.attribute(each.name, each.default) for each in fields(Interpolation))
    )
    targets = _target_reader(problem)
    native = _native_mode(how, problem.rank() or 0) if problem.dtype() in FLOATS else None
    align = None if native == "nearest" else how.coordinate_transformation_mode == "align_corners"

    def resize(x: Tensor, _: Any = None, scales: Any = None, sizes: Any = None) -> Any:
        sizes, scales = targets(x.shape, scales, sizes)
        if native is not None and _has_exact_ratios(x.shape, sizes, scales, native):
            return functional.interpolate(x, sizes[2:], mode=native, align_corners=align)
        for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
            if size != x.shape[axis] or scale != 1.0:
                x = _resize_axis(x, axis, size, scale, how)
        return x

    return bind(problem, resize, numbers={1, 2, 3})


def _native_mode(how: Interpolation, dims: int) -> str | None:
    """torch's name of the mode where its coordinates are the same; None where there is none.

    Its sizes give the ratio, so a scale must divide out, which the caller checks.
    """
    if how.antialias or how.exclude_outside or dims not in (3, 4, 5):
        return None
    if how.mode == "nearest":
        is_same = (
            how.coordinate_transformation_mode == "asymmetric" and how.nearest_mode == "floor"
        )
        return "nearest" if is_same else None
    if how.coordinate_transformation_mode not in ("half_pixel", "align_corners"):
        return None
    if how.mode == "linear":
        return {3: "linear", 4: "bilinear", 5: "trilinear"}[dims]
    is_bicubic = how.mode == "cubic" and dims == 4 and how.cubic_coeff_a == -0.75
    return "bicubic" if is_bicubic else None


def _has_exact_ratios(
    shape: Sequence[int], sizes: Sequence[int], scales: Sequence[float], mode: str
) -> bool:
    """Whether sizes alone say what the scales do, for spatial axes only.

    Copying the nearest element needs whole ratios too: rounding decides which one that is.
    """
    for axis, (size, scale, target) in enumerate(zip(shape, scales, sizes, strict=True)):
        whole = min(size, target) > 0 and (target % size == 0 or size % target == 0)
        fits = size == target if axis < 2 else abs(size * scale - target) <= 1e-4 * target
        if not fits or (mode == "nearest" and not whole):
            return False
    return True


def _target_reader(problem: Problem) -> Callable[[Sequence[int], Any, Any], Targets]:
    """What makes sizes and scales of all axes from the shape and the operands' numbers."""
    chosen = problem.attribute("axes", None)
    policy = problem.attribute("keep_aspect_ratio_policy", "stretch")

    def read(shape: Sequence[int], given: Sequence[float], wanted: Sequence[int]) -> Targets:
        axes = [axis % len(shape) for axis in (range(len(shape)) if chosen is None else chosen)]
        sizes, scales = list(shape), [1.0] * len(shape)
        if wanted:
            given = [size / shape[axis] for size, axis in zip(wanted, axes, strict=True)]
            if policy != "stretch":
                ratio = min(given) if policy == "not_larger" else max(given)
                given = [ratio] * len(axes)
                wanted = [int(ratio * shape[axis] + 0.5) for axis in axes]
        else:
            wanted = [int(shape[axis] * scale) for axis, scale in zip(axes, given, strict=True)]
        for axis, size, scale in zip(axes, wanted, given, strict=True):
            sizes[axis], scales[axis] = size, scale
        return sizes, scales

    return read


def _resize_axis(x: Tensor, axis: int, size: int, scale: float, how: Interpolation) -> Tensor:
    if how.mode == "nearest":
        places = _nearest_places(x.shape[axis], size, scale, how)
        return x.index_select(axis, torch.from_numpy(places).to(x.device))
    matrix = torch.from_numpy(_weight_matrix(x.shape[axis], size, scale, how))
    matrix = matrix.to(dtype=x.dtype, device=x.device)
    return torch.matmul(x.transpose(axis, -1), matrix.t()).transpose(axis, -1)


@dataclass(frozen=True, slots=True)
class Interpolation:
    """Attributes of Resize, with the defaults of its definition."""

    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    antialias: int = 0
    exclude_outside: int = 0


def _source_coordinates(size: int, target: int, scale: float, how: Interpolation) -> np.ndarray:
    """float64 [target]: the place in the source of each output position."""
    y = np.arange(target, dtype=np.float64)
    exact = scale * size
    if how.coordinate_transformation_mode == "align_corners":
        return np.zeros(target) if exact == 1 else y * (size - 1) / (exact - 1)
    if how.coordinate_transformation_mode == "asymmetric":
        return y / scale
    if how.coordinate_transformation_mode == "pytorch_half_pixel" and exact == 1:
        return np.full(target, -0.5)
    x = (y + 0.5) / scale - 0.5
    if how.coordinate_transformation_mode == "half_pixel_symmetric":
        x += size / 2 * (1 - target / exact)
    return x


def _nearest_places(size: int, target: int, scale: float, how: Interpolation) -> np.ndarray:
    """int64 [target]: the source position that each output copies."""
    x = _source_coordinates(size, target, scale, how)
    rounded = {
        "round_prefer_floor": lambda: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda: np.floor(x + 0.5),
        "floor": lambda: np.floor(x),
        "ceil": lambda: np.ceil(x),
    }[how.nearest_mode]()
    return np.clip(rounded, 0, size - 1).astype(np.int64)


def _weight_matrix(size: int, target: int, scale: float, how: Interpolation) -> np.ndarray:
    """float64 [target, size]: what each output takes of each source position.

    Antialiasing widens the kernel by the scale where that shrinks. What lies outside counts as
    the edge, or not at all with ``exclude_outside``.
    """
    x = _source_coordinates(size, target, scale, how)
    stretch = min(scale, 1.0) if how.antialias else 1.0
    reach = int(np.ceil((1 if how.mode == "linear" else 2) / stretch))
    first = np.floor(x).astype(np.int64)
    places = first[:, None] + np.arange(-reach, reach + 2)[None, :]
    distances = np.abs(places - x[:, None]) * stretch
    weights = _linear(distances) if how.mode == "linear" else _cubic(distances, how)
    if how.exclude_outside:
        weights = np.where((places < 0) | (places >= size), 0.0, weights)
    weights /= weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((target, size))
    rows = np.broadcast_to(np.arange(target)[:, None], places.shape)
    np.add.at(matrix, (rows, np.clip(places, 0, size - 1)), weights)
    return matrix


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.clip(1.0 - distance, 0.0, None)


def _cubic(d: np.ndarray, how: Interpolation) -> np.ndarray:
    """Keys' kernel (1981) with coefficient a."""
    a = how.cubic_coeff_a
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _check_resize(problem: Problem) -> str | None:
    if problem.attribute("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return "crops"
    allowed = MOVED if problem.attribute("mode", "nearest") == "nearest" else FLOATS
    return takes(allowed, FLOATS, {"float32"}, {"int64"})(problem)


RESIZING: dict[str, Rule] = {"Resize": Rule(_load_resize, _check_resize)}
