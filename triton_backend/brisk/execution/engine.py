"""When ONNX Runtime computes a model rather than kernels of Brisk's own.

Brisk's own kernels start sooner from an artefact and are as fast on the models they were written
for; on a processor or in a data type that they were not written for they take many times ONNX
Runtime's time, and some operators they do not know at all.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from brisk.execution.plan import Plan
from brisk.graph.arithmetic import ADVISED_FROM, processor_flags, slow_arithmetic


def slow_reason(model: Path, plan: Plan) -> str | None:
    """Why Brisk's own kernels would be slow on a model; None where nothing says so.

    Raises InvalidModelError where the file is no model.
    """
    slow = Counter(
        layer.problem.layer.main.operator
        for layer in plan.layers
        if layer.solution.name == "reference"
    )
    if slow:
        names = ", ".join(f"{operator} ×{count}" for operator, count in slow.most_common(3))
        return f"Brisk has no fast kernels of its own for {names}"
    found = slow_arithmetic(model, processor_flags())
    worst = max(found, key=lambda each: each.worst, default=None)
    return str(worst) if worst is not None and worst.worst >= ADVISED_FROM else None
