"""One-layer problems, and what the reference solution makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from brisk.graph.program import Epilogue, Layer, Node, ValueType
from brisk.solutions.base import BodyRunner, LoadContext, Operand, Problem, Solution
from brisk.solutions.problem import dynamic_operands
from brisk.solutions.reference import Reference
from brisk.solutions.values import dtype_name, from_numpy, to_numpy

CPU = torch.device("cpu")


def no_bodies(*_: Any) -> BodyRunner:
    raise AssertionError("no solution here has a body")


CONTEXT = LoadContext(CPU, no_bodies)


def layer_problem(
    main: Node,
    values: Mapping[str, np.ndarray],
    *,
    constants: Sequence[str] = (),
    epilogue: Sequence[Epilogue] = (),
    nodes: Sequence[Node] | None = None,
    symbolic: Mapping[str, Sequence[int]] | None = None,
    device: torch.device = CPU,
) -> Problem:
    """A problem whose operands have the types of ``values``.

    ``symbolic``: positions of dimensions by operand that the problem shall not know.
    ``nodes``: where ``main`` is no ONNX operator, the ONNX nodes that mean the same; they write
    ``main``'s outputs.
    """
    hidden = symbolic or {}

    def operand(name: str) -> Operand:
        array = values[name]
        if name in constants:
            return Operand(name, ValueType(dtype_name(array), array.shape), array)
        positions = hidden.get(name, ())
        shape = tuple(
            f"size{size}" if index in positions else size for index, size in enumerate(array.shape)
        )
        return Operand(name, ValueType(dtype_name(array), shape), None)

    nodes = tuple(nodes or (main,)) + tuple(epilogue_nodes(epilogue, main.outputs[0]))
    outputs = (nodes[-1].outputs[0],) if epilogue else main.outputs
    layer = Layer(0, main, nodes, outputs, tuple(epilogue))
    problem = Problem(
        layer=layer,
        operands=tuple(operand(name) if name else None for name in main.inputs),
        epilogue_operands=tuple(operand(step.operand) for step in epilogue if step.operand),
        captures=(),
        outputs=tuple(ValueType(None, None) for _ in outputs),
        device=device,
    )
    results = run_reference(problem, values)
    types = tuple(
        ValueType(dtype_name(result), (None,) * np.ndim(result) if hidden else result.shape)
        for result in results
    )
    return Problem(layer, problem.operands, problem.epilogue_operands, (), types, problem.device)


def epilogue_nodes(epilogue: Sequence[Epilogue], source: str) -> list[Node]:
    """The steps as ONNX nodes that read ``source``."""
    nodes: list[Node] = []
    for index, step in enumerate(epilogue):
        result = f"step{index}"
        if step.operator == "Silu":
            nodes.append(Node("Sigmoid", (source,), (f"{result}_gate",), version=13))
            nodes.append(Node("Mul", (source, f"{result}_gate"), (result,), version=14))
        elif step.operator == "Clip":
            bounds = []
            for name in ("min", "max"):
                bound = f"{result}_{name}" if name in step.attributes else ""
                bounds.append(bound)
                if bound:
                    value = np.float32(step.attributes[name])  # type: ignore[arg-type]
                    constant = {"value": np.asarray(value)}
                    nodes.append(Node("Constant", (), (bound,), constant, version=13))
            nodes.append(Node("Clip", (source, *bounds), (result,), version=13))
        elif step.operand is not None:
            inputs = (step.operand, source) if step.operand_first else (source, step.operand)
            nodes.append(Node(step.operator, inputs, (result,), version=14))
        else:
            version = {"Gelu": 20, "Mish": 18, "LeakyRelu": 16, "HardSwish": 14}.get(
                step.operator, 13 if step.operator in ("Sigmoid", "Tanh") else 6
            )
            if step.operator in ("Relu",):
                version = 14
            nodes.append(
                Node(step.operator, (source,), (result,), step.attributes, version=version)
            )
        source = result
    return nodes


def run_reference(problem: Problem, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return run_solution(Reference(), problem, values)


def run_solution(
    solution: Solution, problem: Problem, values: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """The outputs; fails where the solution refuses the problem."""
    verdict = solution.check(problem)
    assert verdict.ok, f"{solution.name}: {verdict.reason}"
    context = LoadContext(problem.device, no_bodies)
    with torch.inference_mode():
        kernel = solution.load(problem, solution.transform(problem), context)
        operands = [
            from_numpy(values[operand.name], problem.device)
            for operand in dynamic_operands(problem)
        ]
        before = [np.array(to_numpy(operand)) for operand in operands]
        results = [to_numpy(value) for value in kernel(*operands)]
    for operand, original in zip(operands, before, strict=True):
        np.testing.assert_array_equal(
            to_numpy(operand), original, err_msg=f"{solution.name} changed an operand"
        )
    return results


def assert_agrees(
    solution: Solution,
    problem: Problem,
    values: Mapping[str, np.ndarray],
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """The solution's outputs have the reference's dtype, shape and, nearly, values."""
    expected, actual = run_reference(problem, values), run_solution(solution, problem, values)
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        assert dtype_name(ours) == dtype_name(theirs)
        wide = (np.float64,) if theirs.dtype.kind not in "OUSb" else (object,)
        np.testing.assert_allclose(
            ours.astype(*wide), theirs.astype(*wide), rtol=rtol, atol=atol, err_msg=solution.name
        )
