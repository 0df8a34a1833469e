"""``brisk explain`` and ``brisk doctor``: what a model is served as, what a deployment lacks."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brisk.cli.commands.models import DeviceOption, ModelArgument, VersionOption, model_file
from brisk.errors import InvalidConfigurationError

if TYPE_CHECKING:
    from brisk.doctor.deployment import Finding

_STYLES = {"good": "green", "advice": "yellow", "problem": "bold red", "unknown": "dim"}


def explain(
    model: ModelArgument,
    version: VersionOption = None,
    device: DeviceOption = "cpu",
    every: Annotated[
        bool, typer.Option("--all", help="List the nodes of every segment; on a GPU, every layer.")
    ] = False,
) -> None:
    """Print what a model is served as: in segments by ONNX Runtime, or in layers by torch.

    A summary first, then a line for each segment: its nodes, its predicted time, what crosses its
    end and how its weights are kept.
    """
    from rich.console import Console

    from brisk.pipelines import is_pipeline

    if not re.fullmatch(r"cpu|cuda:\d+", device):
        raise InvalidConfigurationError(f"there is no device '{device}'; name cpu or cuda:N")
    file = model_file(model, version)
    if is_pipeline(file):
        from brisk.cli.views.entries import pipeline_text

        lines = pipeline_text(file)
    else:
        from brisk.cli.views.segments import layers_text, segments_text

        if device == "cpu":
            lines = segments_text(file, model if model.is_dir() else None, every=every)
        else:
            lines = layers_text(file, device, every=every)
    console = Console(soft_wrap=True, highlight=False)
    for line in lines:
        console.print(line, markup=False)


def doctor(
    repository: Annotated[
        list[Path] | None,
        typer.Option(help="Model repository to look at, beside the server's.", metavar="DIR"),
    ] = None,
    device: DeviceOption = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Findings as JSON.")] = False,
) -> None:
    """Look at the deployment on this machine and say what to change, why, and what it costs.

    Looks at the running `tritonserver` of this user, in a container too where its processes can
    be seen; else at what this shell's environment would give one. Exit status 1 where something
    cannot work as it is.
    """
    from brisk.doctor import examine
    from brisk.doctor.deployment import Severity, find_deployment

    deployment = find_deployment(repository or (), device)
    findings = []
    for check, finding in examine(deployment):
        findings.append({"check": check, **asdict(finding)})
        if not as_json:
            _show(check, finding)
    if as_json:
        print(json.dumps(findings, indent=1))
    if any(finding["verdict"] is Severity.PROBLEM for finding in findings):
        raise typer.Exit(1)


def _show(check: str, finding: Finding) -> None:
    from rich.console import Console
    from rich.text import Text

    verdict = finding.verdict.value
    line = Text.assemble((f"{verdict:<8}", _STYLES[verdict]), f"{check}: {finding.found}")
    for what, text in (("costs", finding.cost), ("do", finding.change)):
        if text:
            line.append(f"\n        {what}: {text}")
    Console(highlight=False, soft_wrap=True).print(line)
