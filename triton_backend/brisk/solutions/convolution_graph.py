"""Small convolutions through oneDNN's graph interface, which prepares its primitives once.

A call of the fused operator of ``convolution`` sets oneDNN's primitive up anew, 25 microseconds
whatever it computes; a partition compiled by torch's JIT for fixed shapes costs 7. Compiling
takes about 15 ms a layer, and the first one in a process half a second, so this is for layers
that are computed in about the time of the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.convolution import OneDnnConvolution
from brisk.solutions.convolution_geometry import Geometry, read_geometry
from brisk.solutions.convolution_small import multiplications
from brisk.solutions.epilogue import constant_tensor, finish_epilogue
from brisk.solutions.onednn_graph import Compiled, compile_function, graph_refusal

FEWEST_MULTIPLICATIONS, MOST_MULTIPLICATIONS = 200_000, 4_000_000
"""For one image. Below, torch's own unfolding convolution costs less than any call of oneDNN."""


class GraphConvolution(Solution):
    """Conv in two dimensions for the batch it was compiled for, one image where that is symbolic.

    Other batches take the fused operator.
    """

    name = "onednn_graph_convolution"
    pattern = Pattern.DIRECT
    compiles = True

    def __init__(self) -> None:
        self._other = OneDnnConvolution()

    def operators(self) -> frozenset[tuple[str, str]]:
        return self._other.operators()

    def check(self, problem: Problem) -> Verdict:
        reason = graph_refusal(problem.device)
        if reason is not None:
            return refused(reason)
        verdict = self._other.check(problem)
        if not verdict.ok:
            return verdict
        source, geometry = problem.operand(0), read_geometry(problem)
        assert source is not None
        assert isinstance(geometry, Geometry)
        if source.type.dtype != "float32":
            return refused(f"dtype {source.type.dtype} is not float32")
        if len(geometry.kernel) != 2:
            return refused("not in two dimensions")
        if not geometry.is_symmetric:
            return refused("padded asymmetrically")
        count = multiplications(problem, geometry)
        if count is None or not isinstance((source.type.shape or ("",))[1], int):
            return refused("the sizes are not known")
        if not FEWEST_MULTIPLICATIONS <= count <= MOST_MULTIPLICATIONS:
            return refused(
                f"{count} multiplications an image, {FEWEST_MULTIPLICATIONS} to "
                f"{MOST_MULTIPLICATIONS} pay"
            )
        return verdict

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """oneDNN's ``weight`` and ``bias`` for other batches, and the ``plain`` weights."""
        plain = constant_tensor(problem, 1)
        assert plain is not None
        return {**self._other.transform(problem), "plain": plain}

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        geometry, source = read_geometry(problem), problem.operand(0)
        assert isinstance(geometry, Geometry)
        assert source is not None
        first, *sizes = source.type.shape or ()
        batch = first if isinstance(first, int) and first > 0 else 1
        activated = bool(problem.epilogue) and problem.epilogue[0].operator == "Relu"
        # one channel is both layouts at once; the compiled code wants the strides it has seen
        layout = torch.contiguous_format if sizes[0] == 1 else torch.channels_last
        example = torch.zeros(batch, *sizes).contiguous(memory_format=layout)  # type: ignore[arg-type]
        compiled = _compile(weights, geometry, activated, example)
        other = self._other.load(problem, weights, context)

        finish = finish_epilogue(problem, int(activated))

        def kernel(*operands: torch.Tensor) -> Any:
            source = operands[0]
            if source.shape[0] != batch:
                return other(*operands)
            result = compiled(source.contiguous(memory_format=layout))
            return (result if finish is None else finish(result, operands[1:]),)

        return kernel


def _compile(
    weights: Mapping[str, torch.Tensor], geometry: Geometry, activated: bool, example: torch.Tensor
) -> Compiled:
    """The convolution, and Relu behind it, for inputs of exactly ``example``'s layout."""
    weight, bias = weights["plain"], weights.get("bias")
    strides, padding, dilations = geometry.strides, geometry.begin, geometry.dilations

    def convolve(source: torch.Tensor) -> torch.Tensor:
        result = torch.conv2d(source, weight, bias, strides, padding, dilations, geometry.group)
        return torch.relu(result) if activated else result

    return compile_function(convolve, example, threads=1)


SOLUTIONS: tuple[Solution, ...] = (GraphConvolution(),)
