"""Normalisation over fixed statistics (BatchNormalization) and over the input's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from brisk.graph.program import Dimension
from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import Check, Rule, bind, both, refuse_mixed_floats


def _rank_at_least(least: int) -> Check:
    def check(problem: Problem) -> str | None:
        known = problem.rank()
        if known is None:
            return "the input's rank is not known"
        return None if known >= least else f"rank {known} is below {least}"

    return check


def _first_output_only(problem: Problem) -> str | None:
    count = len(problem.layer.outputs)
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


def _normalised_shape(problem: Problem) -> tuple[int, ...]:
    return tuple(problem.operands[1].type.shape or ())  # type: ignore[union-attr,arg-type]


def _batch(problem: Problem) -> Kernel:
    epsilon = problem.attribute("epsilon", 1e-5)

    def compute(x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> torch.Tensor:
        return torch.batch_norm(x, scale, bias, mean, variance, False, 0.0, epsilon, False)

    return bind(problem, compute)


def _layer(problem: Problem) -> Kernel:
    epsilon, shape = problem.attribute("epsilon", 1e-5), _normalised_shape(problem)
    call = torch.layer_norm
    return bind(problem, lambda x, scale, bias=None: call(x, shape, scale, bias, epsilon))


def _root_mean_square(problem: Problem) -> Kernel:
    epsilon, shape = problem.attribute("epsilon", 1e-5), _normalised_shape(problem)
    return bind(problem, lambda x, scale: torch.rms_norm(x, shape, scale, epsilon))


def _instance(problem: Problem) -> Kernel:
    epsilon = problem.attribute("epsilon", 1e-5)

    def compute(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.instance_norm(x, scale, bias, None, None, True, 0.0, epsilon, False)

    return bind(problem, compute)


def _group(problem: Problem) -> Kernel:
    epsilon = problem.attribute("epsilon", 1e-5)
    groups = int(problem.attribute("num_groups", 1))
    return bind(problem, lambda x, s, b: torch.group_norm(x, groups, s, b, epsilon, False))


def _local_response(problem: Problem) -> Kernel:
    size = int(problem.attribute("size", 1))
    alpha, beta = problem.attribute("alpha", 1e-4), problem.attribute("beta", 0.75)
    bias = problem.attribute("bias", 1.0)
    return bind(problem, lambda x: functional.local_response_norm(x, size, alpha, beta, bias))


def _mean_variance(problem: Problem) -> Kernel:
    axes = list(problem.attribute("axes", (0, 2, 3)))

    def compute(x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(axes, keepdim=True)
        deviation = ((x * x).mean(axes, keepdim=True) - mean * mean).sqrt()
        return (x - mean) / (deviation + 1e-9)

    return bind(problem, compute)


def _infer_only(problem: Problem) -> str | None:
    return "training mode" if problem.attribute("training_mode", 0) else None


def _odd_size(problem: Problem) -> str | None:
    size = problem.attribute("size", 1)
    return None if size % 2 else f"a window of even size {size} lies differently in torch"


def _rule(load: Callable[[Problem], Kernel], *checks: Check, since: int = 1) -> Rule:
    return Rule(load, both(refuse_mixed_floats, _first_output_only, *checks), since)


_OVER_LAST_AXES = (_rank_at_least(1), _computes_in_float32, _scale_covers_the_axes)

NORMALISATION: dict[str, Rule] = {
    "BatchNormalization": _rule(_batch, _rank_at_least(2), _infer_only, since=9),
    "LayerNormalization": _rule(_layer, *_OVER_LAST_AXES),
    "RMSNormalization": _rule(_root_mean_square, *_OVER_LAST_AXES),
    "InstanceNormalization": _rule(_instance, _rank_at_least(3)),
    "GroupNormalization": _rule(_group, _rank_at_least(2), _computes_in_float32, since=21),
    "LRN": _rule(_local_response, _rank_at_least(3), _odd_size),
    "MeanVarianceNormalization": _rule(_mean_variance, _rank_at_least(1)),
}
