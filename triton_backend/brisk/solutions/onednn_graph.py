"""Functions compiled by oneDNN's graph interface, through torch's JIT, for inputs of fixed layout.

The compiled code prepares its primitives once, where the fused operators of ``onednn_call`` set
them up anew at each call. The first function compiled in a process costs about 50 ms, a
convolution 15, a pooling 3.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Compiled: TypeAlias = Callable[..., torch.Tensor]

_PROFILED_CALLS = 3
"""Calls until the JIT has compiled for the shapes it has seen."""

_COMPILING = threading.Lock()
"""The JIT's switches belong to the process."""


def graph_refusal(device: torch.device) -> str | None:
    """Why nothing can be compiled here; None where it can."""
    if device.type != "cpu":
        return f"oneDNN computes on the CPU, not on {device}"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch has no oneDNN"
    if not hasattr(torch.jit, "enable_onednn_fusion"):
        return "this torch has no oneDNN graph fusion"
    return None


def compile_function(
    function: Callable[..., torch.Tensor], *examples: torch.Tensor, threads: int | None = None
) -> Compiled:
    """``function`` for inputs of exactly the sizes and strides of ``examples``.

    ``threads``: how many will ever compute it; None for as many as torch has now.
    Tensors that the function holds become constants of the compiled code.
    """

    class Traced(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return function(*inputs)

    jit: Any = torch.jit
    with _COMPILING, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the JIT is deprecated, without a successor for this
        before, threads_before = jit.onednn_fusion_enabled(), torch.get_num_threads()
        jit.enable_onednn_fusion(True)
        try:
            torch.set_num_threads(threads or threads_before)
            module = jit.freeze(jit.trace(Traced().eval(), examples, check_trace=False))
            for _ in range(_PROFILED_CALLS):
                module(*examples)
        finally:
            torch.set_num_threads(threads_before)
            jit.enable_onednn_fusion(before)
    return module.forward
