"""Maximum pooling of large planes through oneDNN's graph interface.

torch's own kernel keeps the places of the maxima as it goes and takes three times as long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.onednn_graph import compile_function, graph_refusal
from brisk.solutions.pooling import Pooling
from brisk.solutions.pooling_window import read_window

FEWEST_ELEMENTS = 1 << 16
"""Of one image. Below, the compiled code's cost per call outweighs the gain."""


class GraphMaximumPooling(Solution):
    """MaxPool in two dimensions, channels-last, for the batch it was compiled for.

    One image where the batch is symbolic. Other inputs take torch's kernel. oneDNN's maximum
    passes over NaN where torch's returns it.
    """

    name = "onednn_graph_pooling"
    pattern = Pattern.POOLING
    compiles = True

    def __init__(self) -> None:
        self._other = Pooling()

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "MaxPool")})

    def check(self, problem: Problem) -> Verdict:
        reason = graph_refusal(problem.device)
        if reason is not None:
            return refused(reason)
        verdict = self._other.check(problem)
        if not verdict.ok:
            return verdict
        source = problem.operand(0)
        shape = () if source is None else source.type.shape or ()
        if source is None or source.constant is not None or source.type.dtype != "float32":
            return refused("not a variable of float32")
        if len(problem.layer.main.outputs) > 1:
            return refused("the places are wanted too")
        sizes = [size for size in shape[1:] if isinstance(size, int)]
        if len(shape) != 4 or len(sizes) != 3:
            return refused("not in two dimensions of known sizes")
        window = read_window(problem)
        if not window.is_native or window.ceil or window.is_dilated:
            return refused("padded unevenly, rounded up, or dilated")
        if math.prod(sizes) < FEWEST_ELEMENTS:
            return refused(f"{math.prod(sizes)} elements an image, {FEWEST_ELEMENTS} pay")
        return verdict

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        source, window = problem.operand(0), read_window(problem)
        assert source is not None
        first, *sizes = source.type.shape or ()
        batch = first if isinstance(first, int) and first > 0 else 1
        other = self._other.load(problem, weights, context)
        pads = window.pads_before

        def pool(x: torch.Tensor) -> torch.Tensor:
            return torch.max_pool2d(x, window.kernel, window.strides, pads, (1, 1), False)

        example = torch.zeros(batch, *sizes)  # type: ignore[arg-type]  # seen to be ints
        compiled = compile_function(pool, example.contiguous(memory_format=torch.channels_last))
        strides = example.contiguous(memory_format=torch.channels_last).stride()

        def kernel(x: torch.Tensor) -> Any:
            if x.shape[0] == batch and x.stride() == strides:
                return (compiled(x),)
            return other(x)

        return kernel


SOLUTIONS: tuple[Solution, ...] = (GraphMaximumPooling(),)
