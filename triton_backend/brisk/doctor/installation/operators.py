"""Entries that what computes them does not take, or computes slowly.

On a CPU that is ONNX Runtime, which alone can tell. On a GPU it is torch, which leaves operators
without a form of its own to the reference operators of onnx.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from brisk.doctor.base import Deployment, Finding, Severity
from brisk.doctor.entries import entry_tuning, model_files
from brisk.errors import BriskError

NAME = "operators"


def look(deployment: Deployment) -> Iterator[Finding]:
    files = model_files(deployment)
    if not files:
        yield Finding(NAME, Severity.UNKNOWN, "no model repository was given or found")
        return
    on_cpu = deployment.device == "cpu"
    told = 0
    for file in files:
        counts: Counter[str] = Counter()
        try:
            if on_cpu:
                _check_taken(file)
            else:
                counts = _reference_operators(file, deployment.device)
        except BriskError as error:
            told += 1
            yield Finding(
                NAME, Severity.PROBLEM, f"{file}: {error}", "it is not served", "fix the model"
            )
        if counts:
            told += 1
            yield _slow(file, counts, deployment.device)
    if not told:
        how = "ONNX Runtime takes all {} models" if on_cpu else "torch computes all {} models"
        yield Finding(NAME, Severity.GOOD, how.format(len(files)))


def _check_taken(file: Path) -> None:
    """Make every session of the model. Raises BriskError where that fails, as a load would."""
    from brisk.segments.model.sources import BareModel

    BareModel(file, 1, tuning=entry_tuning(file)).check()


def _slow(file: Path, counts: Counter[str], device: str) -> Finding:
    names = ", ".join(f"{operator} ×{count}" for operator, count in counts.most_common(5))
    return Finding(
        NAME,
        Severity.ADVICE,
        f"{file}: by reference operators: {names}",
        "these are written for clarity, in numpy: some are hundreds of times slower",
        f"`brisk explain {file.parent.parent} --device {device} --all` says why; export the model "
        "with other operators where that is possible",
    )


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
