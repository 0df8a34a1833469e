"""Layers, problems and choices in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from brisk.execution.plan import LayerPlan, Plan
from brisk.graph.program import Epilogue, Program, ValueType, Variable
from brisk.solutions.base import Operand, Problem


def type_text(value: ValueType) -> str:
    """``float32[batch, 3, 224, 224]``; ``?`` for what is not known."""
    shape = (
        "?"
        if value.shape is None
        else ", ".join("?" if d is None else str(d) for d in value.shape)
    )
    container = "" if value.container.value == "tensor" else f"{value.container.value} of "
    return f"{container}{value.dtype or '?'}[{shape}]"


def variable_text(variable: Variable) -> str:
    return f"{variable.name}: {type_text(variable.type)}" + (" optional" * variable.optional)


def problem_text(problem: Problem) -> str:
    """``Conv-22(float32[…], weight float32[…]) group=1 + Relu -> float32[…]``."""
    operator = f"{problem.domain}.{problem.operator}" if problem.domain else problem.operator
    operands = ", ".join(_operand_text(operand) for operand in problem.operands)
    epilogue = "".join(f" + {_epilogue_text(step)}" for step in problem.epilogue)
    outputs = ", ".join(type_text(output) for output in problem.outputs)
    attributes = _attributes_text(problem.attributes)
    return f"{operator}-{problem.version}({operands}){attributes}{epilogue} -> {outputs}"


def choice_text(planned: LayerPlan) -> str:
    """The solution's name and pattern, and why each better candidate was passed over."""
    chosen = f"{planned.solution.name} [{planned.solution.pattern.value}]"
    if not planned.passed_over:
        return f"{chosen}: first choice"
    reasons = "; ".join(
        f"{solution.name}: {verdict.reason}" for solution, verdict in planned.passed_over
    )
    return f"{chosen}, because not {reasons}"


def solution_counts(plan: Plan) -> list[tuple[str, int]]:
    """How many layers each solution has, most first."""
    return Counter(planned.solution.name for planned in plan.layers).most_common()


def _operand_text(operand: Operand | None) -> str:
    if operand is None:
        return "-"
    constant = "" if operand.constant is None else "constant "
    return constant + type_text(operand.type)


def _epilogue_text(step: Epilogue) -> str:
    operand = f"({step.operand})" if step.operand else ""
    return f"{step.operator}{operand}{_attributes_text(step.attributes)}"


def _attributes_text(attributes: Mapping[str, object]) -> str:
    parts = [f"{name}={_attribute_text(value)}" for name, value in sorted(attributes.items())]
    return " " + " ".join(parts) if parts else ""


def _attribute_text(value: object) -> str:
    if isinstance(value, Program):
        return f"<{len(value.layers)} layers>"
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {list(value.shape)}>"
    if isinstance(value, tuple):
        return "[" + ",".join(_attribute_text(item) for item in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
