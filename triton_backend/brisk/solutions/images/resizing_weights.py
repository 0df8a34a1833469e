"""Where each output of Resize looks along one axis, and with what weights (operator Resize-19).

Numpy only; an axis at a time, since interpolation is separable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Interpolation:
    """Attributes of Resize under the names of what they are."""

    mode: str
    coordinates: str
    rounding: str
    cubic_coefficient: float
    antialias: bool
    exclude_outside: bool


def source_coordinates(size: int, target: int, scale: float, how: Interpolation) -> np.ndarray:
    """float64 [target]: the place in the source of each output position."""
    y = np.arange(target, dtype=np.float64)
    exact = scale * size
    if how.coordinates == "align_corners":
        return np.zeros(target) if exact == 1 else y * (size - 1) / (exact - 1)
    if how.coordinates == "asymmetric":
        return y / scale
    if how.coordinates == "pytorch_half_pixel" and exact == 1:
        return np.full(target, -0.5)
    x = (y + 0.5) / scale - 0.5
    if how.coordinates == "half_pixel_symmetric":
        x += size / 2 * (1 - target / exact)
    return x


def nearest_places(size: int, target: int, scale: float, how: Interpolation) -> np.ndarray:
    """int64 [target]: the source position that each output copies."""
    x = source_coordinates(size, target, scale, how)
    rounded = {
        "round_prefer_floor": lambda: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda: np.floor(x + 0.5),
        "floor": lambda: np.floor(x),
        "ceil": lambda: np.ceil(x),
    }[how.rounding]()
    return np.clip(rounded, 0, size - 1).astype(np.int64)


def weight_matrix(size: int, target: int, scale: float, how: Interpolation) -> np.ndarray:
    """float64 [target, size]: what each output takes of each source position.

    Antialiasing widens the kernel by the scale where that shrinks. What lies outside counts as
    the edge, or not at all with ``exclude_outside``.
    """
    x = source_coordinates(size, target, scale, how)
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
    a = how.cubic_coefficient
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
