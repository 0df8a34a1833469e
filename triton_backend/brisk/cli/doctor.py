"""``brisk doctor``: looks at a deployment and says what to change."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from brisk.doctor.deployment import Finding

_STYLES = {"good": "green", "advice": "yellow", "problem": "bold red", "unknown": "dim"}


def doctor(
    repository: Annotated[
        list[Path] | None,
        typer.Option(help="Model repository to look at, beside the server's.", metavar="DIR"),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda:<number>.")] = "cpu",
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

    console = Console(highlight=False, soft_wrap=True)
    verdict = finding.verdict.value
    line = Text.assemble((f"{verdict:<8}", _STYLES[verdict]), f"{check}: {finding.found}")
    console.print(line)
    if finding.cost:
        console.print(Text(f"        costs: {finding.cost}"))
    if finding.change:
        console.print(Text(f"        do: {finding.change}"))
