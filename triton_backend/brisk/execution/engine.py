"""When ONNX Runtime computes a model rather than kernels of Brisk's own.

Brisk's own kernels start sooner from an artefact and are as fast on the models they were written
for; on a processor or in a data type that they were not written for they take many times ONNX
Runtime's time, and some operators they do not know at all.
"""

from __future__ import annotations

from brisk.execution.plan import Plan
from brisk.graph.program import Program

_LOW_PRECISION = frozenset({"float16", "bfloat16", "int8", "uint8", "int4", "uint4"})
_LOW_PRECISION_WORK = frozenset(
    {
        *("Conv", "ConvTranspose", "MatMul", "Gemm", "ConvInteger", "MatMulInteger"),
        *("QLinearConv", "QLinearMatMul"),
    }
)


def slow_reason(plan: Plan, *, has_avx512: bool) -> str | None:
    """Why Brisk's own kernels would be slow on a model; None where nothing says so."""
    for layer in plan.layers:
        main = layer.problem.layer.main
        if layer.solution.name == "reference":
            return f"{main.operator} has no fast kernel of Brisk's own"
        if main.operator in _LOW_PRECISION_WORK and not has_avx512:
            low = sorted(_types_read(plan.program, main.inputs) & _LOW_PRECISION)
            if low:
                return f"{main.operator} of {low[0]} is slow without AVX-512"
    return None


def has_avx512() -> bool:
    """Whether this machine's processor has AVX-512's foundation."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return any("avx512f" in line for line in file if line.startswith("flags"))
    except OSError:
        return False


def _types_read(program: Program, names: tuple[str, ...]) -> set[str]:
    return {kind for name in names if name and (kind := program.type_of(name).dtype) is not None}
