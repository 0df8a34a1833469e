"""Layers as steps: which operators the executor can compute.

Each drawing function adds one problem to a sketch, or raises RefusedError with the reason. Results
agree with the operators' definition to rtol 1e-4 and atol 1e-5 for inputs of the order of one:
sums are in another order, and exp, tanh and erf are polynomials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from brisk.native.products import (
    LAYER_PER_NS,
    draw_convolution,
    draw_large_convolution,
    draw_pool,
    draw_product,
)
from brisk.native.simple import (
    draw_activation,
    draw_argument_maximum,
    draw_arithmetic,
    draw_reshape,
    draw_softmax,
)
from brisk.native.sketch import RefusedError, Sketch
from brisk.solutions.base import Problem, Solution
from brisk.solutions.convolution_blocked import BlockedConvolution

Draw = Callable[[Problem, Sketch], None]


def draw_layer(
    problem: Problem, sketch: Sketch, solution: Solution | None = None, place: int = -1
) -> None:
    """Add the steps that compute ``problem``. Raises RefusedError; the sketch is spoilt then.

    ``solution`` of layer ``place`` of the program: where the executor has its kernel, the step is
    that, with the same weights.
    """
    if isinstance(solution, BlockedConvolution) and solution.unit in LAYER_PER_NS:
        draw_large_convolution(problem, solution, place, sketch)
        return
    draw = _DRAWN.get((problem.domain, problem.operator))
    if draw is None:
        raise RefusedError(f"operator {problem.operator} is not known")
    if len([name for name in problem.layer.outputs if name]) != 1 or problem.captures:
        raise RefusedError("not exactly one output")
    draw(problem, sketch)


_DRAWN: Mapping[tuple[str, str], Draw] = {
    ("", "Conv"): draw_convolution,
    **dict.fromkeys((("", "Gemm"), ("", "MatMul"), ("brisk", "Linear")), draw_product),
    **dict.fromkeys((("", "MaxPool"), ("", "AveragePool")), draw_pool),
    **dict.fromkeys((("", "GlobalMaxPool"), ("", "GlobalAveragePool")), draw_pool),
    **{("", name): draw_arithmetic for name in ("Add", "Sub", "Mul", "Div")},
    **{
        ("", name): draw_activation
        for name in ("Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Gelu", "HardSigmoid")
    },
    ("", "Softmax"): draw_softmax,
    ("", "ArgMax"): draw_argument_maximum,
    **{("", name): draw_reshape for name in ("Flatten", "Reshape", "Squeeze", "Unsqueeze")},
}
