"""What ``brisk explain`` says of a model on a GPU: the layers that torch computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from brisk.cli.explain.text import count_text, variables_text


def layers_text(file: Path, device: str, *, every: bool) -> Iterator[str]:
    """Lines. Raises InvalidModelError and UnsupportedOperatorError as the load does."""
    import torch

    from brisk.execution.plan import make_plan
    from brisk.graph.reader import read_program
    from brisk.solutions.catalogue import default_catalogue

    program = read_program(file)
    plan = make_plan(program, torch.device(device), default_catalogue())
    yield f"{file}: computed by torch {torch.__version__} on {device}, layer by layer"
    size = sum(array.nbytes for array in program.weights.values())
    yield f"  {count_text(len(plan.layers), 'layer')}, {size / 1e6:.1f} MB of weights"
    yield from variables_text("input", program.inputs, every=every)
    yield from variables_text("output", program.outputs, every=every)
    counts = Counter(layer.solution.name for layer in plan.layers)
    for name, count in counts.most_common():
        yield f"  {count:>4} x {name}"
    slow = Counter(
        layer.problem.operator for layer in plan.layers if layer.solution.name == "reference"
    )
    if slow:
        names = ", ".join(f"{operator} ×{count}" for operator, count in slow.most_common())
        yield f"  by the slow reference operators: {names}"
    for index, layer in enumerate(plan.layers if every else ()):
        yield f"{index:>4}  {layer.problem.layer.name}: {layer.solution.name}"
        for solution, verdict in layer.passed_over:
            yield f"      not {solution.name}: {verdict.reason}"
