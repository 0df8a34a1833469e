"""Entries whose layers no fast solution computes: they run by the reference operators of onnx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from brisk.doctor.base import Deployment, Finding, Verdict
from brisk.errors import BriskError

NAME = "operators"


def look(deployment: Deployment) -> Iterator[Finding]:
    files = [
        file
        for repository in deployment.repositories
        for file in sorted(repository.glob("*/*/model.onnx"))
        if file.parent.name.isdigit()
    ]
    if not files:
        yield Finding(NAME, Verdict.UNKNOWN, "no model repository was given or found")
    slow = 0
    for file in files:
        try:
            counts = _reference_operators(file, deployment.device)
        except BriskError as error:
            slow += 1
            yield Finding(
                NAME, Verdict.PROBLEM, f"{file}: {error}", "it is not served", "fix the model"
            )
            continue
        if counts:
            slow += 1
            names = ", ".join(f"{operator} ×{count}" for operator, count in counts.most_common(5))
            yield Finding(
                NAME,
                Verdict.ADVICE,
                f"{file}: by reference operators: {names}",
                "these are written for clarity, in numpy: some are hundreds of times slower",
                f"`brisk explain {file.parent.parent} --all` says why; export the model with "
                "other operators where that is possible",
            )
    if files and not slow:
        yield Finding(NAME, Verdict.GOOD, f"all layers of {len(files)} models have fast solutions")


def _reference_operators(file: Path, device: str) -> Counter[str]:
    import torch

    from brisk.execution.plan import make_plan
    from brisk.graph.reader import read_program
    from brisk.solutions.catalogue import default_catalogue

    plan = make_plan(read_program(file), torch.device(device), default_catalogue())
    return Counter(
        layer.problem.layer.main.operator
        for layer in plan.layers
        if layer.solution.name == "reference"
    )
