"""Normalisation over fixed statistics (BatchNormalization) and over the input's own.

Functions take ONNX's attributes under their names.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from brisk.graph.program import Dimension
from brisk.solutions.base import Problem
from brisk.solutions.rules import Check, Load, Rule, both, calls, refuse_mixed_floats


def _rank_at_least(least: int) -> Check:
    def check(problem: Problem) -> str | None:
        known = problem.rank()
        if known is None:
            return "the input's rank is not known"
        return None if known >= least else f"rank {known} is below {least}"

    return check


def _first_output_only(problem: Problem) -> str | None:
    count = len(problem.node.outputs)
    return None if count == 1 else f"{count} outputs, only the first is computed"


def _computes_in_float32(problem: Problem) -> str | None:
    """As torch does for narrower inputs."""
    asked = problem.attribute("stash_type", 1)
    return None if asked == 1 else f"stash_type {asked} is not float32"


def _scale_covers_the_axes(problem: Problem) -> str | None:
    """Scale and bias have exactly the normalised dimensions, as torch wants them."""
    shape = problem.operands[0].type.shape or ()  # type: ignore[union-attr]
    axis = int(problem.attribute("axis", -1)) % len(shape) if shape else 0
    normalised = shape[axis:]
    for operand in problem.operands[1:]:
        if operand is None:
            continue
        given = operand.type.shape
        if given is None or not _covers(given, normalised):
            return f"'{operand.name}' of shape {given} for dimensions {normalised}"
    return None if problem.operand(1) is not None else "no scale"


def _covers(given: Sequence[Dimension], normalised: Sequence[Dimension]) -> bool:
    """Whether all sizes are known, and none is 1 that has to be broadcast."""
    return len(given) == len(normalised) and all(
        isinstance(size, int) and (size == wanted or size != 1)
        for size, wanted in zip(given, normalised, strict=True)
    )


def _infer_only(problem: Problem) -> str | None:
    return "training mode" if problem.attribute("training_mode", 0) else None


def _odd_size(problem: Problem) -> str | None:
    size = problem.attribute("size", 1)
    return None if size % 2 else f"a window of even size {size} lies differently in torch"


def _batch(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, epsilon: float
) -> Tensor:
    return torch.batch_norm(x, scale, bias, mean, variance, False, 0.0, epsilon, False)


def _layer(x: Tensor, scale: Tensor, bias: Tensor | None = None, *, epsilon: float) -> Tensor:
    return torch.layer_norm(x, scale.shape, scale, bias, epsilon)


def _root_mean_square(x: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    return torch.rms_norm(x, scale.shape, scale, epsilon)


def _instance(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return torch.instance_norm(x, scale, bias, None, None, True, 0.0, epsilon, False)


def _group(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float, num_groups: int) -> Tensor:
    return torch.group_norm(x, num_groups, scale, bias, epsilon, False)


def _local_response(x: Tensor, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    return functional.local_response_norm(x, size, alpha, beta, bias)


def _mean_variance(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    mean = x.mean(axes, keepdim=True)
    deviation = ((x * x).mean(axes, keepdim=True) - mean * mean).sqrt()
    return (x - mean) / (deviation + 1e-9)


def _rule(load: Load, *checks: Check) -> Rule:
    return Rule(load, both(refuse_mixed_floats, _first_output_only, *checks))


_OVER_LAST_AXES = (_rank_at_least(1), _computes_in_float32, _scale_covers_the_axes)

NORMALISATION: dict[str, Rule] = {
    "BatchNormalization": _rule(calls(_batch, epsilon=1e-5), _rank_at_least(2), _infer_only),
    "LayerNormalization": _rule(calls(_layer, epsilon=1e-5), *_OVER_LAST_AXES),
    "RMSNormalization": _rule(calls(_root_mean_square, epsilon=1e-5), *_OVER_LAST_AXES),
    "InstanceNormalization": _rule(calls(_instance, epsilon=1e-5), _rank_at_least(3)),
    "GroupNormalization": _rule(
        calls(_group, epsilon=1e-5, num_groups=1), _rank_at_least(2), _computes_in_float32
    ),
    "LRN": _rule(
        calls(_local_response, size=1, alpha=1e-4, beta=0.75, bias=1.0),
        _rank_at_least(3),
        _odd_size,
    ),
    "MeanVarianceNormalization": _rule(calls(_mean_variance, axes=(0, 2, 3)), _rank_at_least(1)),
}
