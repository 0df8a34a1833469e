"""Resize: torch's kernels for the usual modes, one matrix or gather an axis for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.images.resizing_weights import Interpolation, nearest_places, weight_matrix
from brisk.solutions.rules import FLOATS, MOVED, Rule, attribute, constant, is_dynamic, rank, takes

Targets = tuple[list[int], list[float]]
"""Sizes and scales of all axes."""


def _load_resize(problem: Problem) -> Kernel:
    interpolation = _read_interpolation(problem)
    targets = _target_reader(problem)
    resize_axes = _nearest if interpolation.mode == "nearest" else _weighted
    native = _native_kernel(interpolation, rank(problem))
    fixed = None
    operand = problem.operands[0]
    if operand is not None and operand.type.is_static and not _dynamic_parameters(problem):
        fixed = targets(tuple(operand.type.shape or ()), [])  # type: ignore[arg-type]

    def kernel(x: Any, *parameters: Any) -> tuple[torch.Tensor]:
        sizes, scales = fixed or targets(x.shape, [value.tolist() for value in parameters])
        if native is not None and _has_exact_ratios(x.shape, sizes, scales, interpolation.mode):
            return (native(x, sizes[2:]),)
        return (resize_axes(x, sizes, scales, interpolation),)

    return kernel


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


def _native_kernel(interpolation: Interpolation, dims: int | None) -> Callable[..., Any] | None:
    """torch's own kernel where its coordinates are the same; None where there is none.

    Its sizes give the ratio, so a scale must divide out, which the caller checks.
    """
    if interpolation.antialias or interpolation.exclude_outside or dims not in (3, 4, 5):
        return None
    mode, coordinates = interpolation.mode, interpolation.coordinates
    if mode == "nearest":
        if coordinates == "asymmetric" and interpolation.rounding == "floor":
            return lambda x, sizes: functional.interpolate(x, sizes, mode="nearest")
        return None
    name = {("linear", 3): "linear", ("linear", 4): "bilinear", ("linear", 5): "trilinear"}.get(
        (mode, dims), "bicubic" if (mode, dims) == ("cubic", 4) else None
    )
    if name is None or coordinates not in ("half_pixel", "align_corners"):
        return None
    if name == "bicubic" and interpolation.cubic_coefficient != -0.75:
        return None
    align = coordinates == "align_corners"
    return lambda x, sizes: functional.interpolate(x, sizes, mode=name, align_corners=align)


def _dynamic_parameters(problem: Problem) -> bool:
    return any(is_dynamic(problem, position) for position in (1, 2, 3))


def _target_reader(problem: Problem) -> Callable[[Sequence[int], list[Any]], Targets]:
    """What reads sizes and scales of all axes from the shape and the dynamic parameters."""
    chosen = attribute(problem, "axes", None)
    policy = attribute(problem, "keep_aspect_ratio_policy", "stretch")
    scales_given, sizes_given = constant(problem, 2), constant(problem, 3)
    positions = [position for position in (1, 2, 3) if is_dynamic(problem, position)]
    sizes_operand = problem.operand(3)
    by_sizes = sizes_operand is not None and (sizes_given is None or len(sizes_given) > 0)

    def read(shape: Sequence[int], dynamic: list[Any]) -> Targets:
        values = dict(zip(positions, dynamic, strict=True))
        dims = len(shape)
        axes = list(range(dims)) if chosen is None else [axis % dims for axis in chosen]
        sizes, scales = list(shape), [1.0] * dims
        if by_sizes:
            wanted = values.get(3, sizes_given)
            ratios = [size / shape[axis] for size, axis in zip(wanted, axes, strict=True)]
            if policy != "stretch":
                ratio = min(ratios) if policy == "not_larger" else max(ratios)
                ratios = [ratio] * len(axes)
                wanted = [int(ratio * shape[axis] + 0.5) for axis in axes]
            for axis, size, ratio in zip(axes, wanted, ratios, strict=True):
                sizes[axis], scales[axis] = size, ratio
        else:
            for axis, scale in zip(axes, values.get(2, scales_given), strict=True):
                sizes[axis], scales[axis] = int(shape[axis] * scale), scale
        return sizes, scales

    return read


def _read_interpolation(problem: Problem) -> Interpolation:
    return Interpolation(
        mode=attribute(problem, "mode", "nearest"),
        coordinates=attribute(problem, "coordinate_transformation_mode", "half_pixel"),
        rounding=attribute(problem, "nearest_mode", "round_prefer_floor"),
        cubic_coefficient=attribute(problem, "cubic_coeff_a", -0.75),
        antialias=bool(attribute(problem, "antialias", 0)),
        exclude_outside=bool(attribute(problem, "exclude_outside", 0)),
    )


def _nearest(
    x: torch.Tensor, sizes: list[int], scales: list[float], how: Interpolation
) -> torch.Tensor:
    for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
        if size != x.shape[axis] or scale != 1.0:
            places = nearest_places(x.shape[axis], size, scale, how)
            x = x.index_select(axis, torch.from_numpy(places).to(x.device))
    return x


def _weighted(
    x: torch.Tensor, sizes: list[int], scales: list[float], how: Interpolation
) -> torch.Tensor:
    for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
        if size != x.shape[axis] or scale != 1.0:
            matrix = torch.from_numpy(weight_matrix(x.shape[axis], size, scale, how))
            matrix = matrix.to(dtype=x.dtype, device=x.device)
            x = torch.matmul(x.transpose(axis, -1), matrix.t()).transpose(axis, -1)
    return x


def _check_resize(problem: Problem) -> str | None:
    if attribute(problem, "coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return "crops"
    if not is_dynamic(problem, 0):
        return "resizes a constant"
    mode = attribute(problem, "mode", "nearest")
    allowed = MOVED if mode == "nearest" else FLOATS
    return takes(allowed, FLOATS, {"float32"}, {"int64"})(problem)


RESIZING: dict[str, Rule] = {"Resize": Rule(_load_resize, _check_resize, since=11)}
