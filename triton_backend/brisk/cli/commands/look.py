"""``brisk explain``, ``check`` and ``doctor``: inspect how a model is served, a repository, and a
deployment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brisk.cli.commands.models import DeviceOption, ModelArgument, VersionOption, for_each_entry
from brisk.cli.views.model_files import model_file
from brisk.errors import InvalidConfigurationError

if TYPE_CHECKING:
    from brisk.doctor.deployment import Finding

_STYLES = {
    "good": "green",
    "advice": "yellow",
    "problem": "bold red",
    "unknown": "dim",
    "warning": "yellow",
    "information": "dim",
}


def explain(
    model: ModelArgument,
    version: VersionOption = None,
    device: DeviceOption = "cpu",
    every: Annotated[bool, typer.Option("--all", help="List the nodes of every segment.")] = False,
    hosts: Annotated[
        int | None,
        typer.Option(help="Plan the model's start on 1 to N hosts instead.", metavar="N"),
    ] = None,
    link: Annotated[
        float, typer.Option(help="Bandwidth of each host, in each direction.", metavar="MBIT")
    ] = 1000,
    registry: Annotated[
        float,
        typer.Option(help="Bandwidth of the registry, for all hosts together.", metavar="MBIT"),
    ] = 2000,
    anywhere: Annotated[
        bool,
        typer.Option(
            "--anywhere",
            help="Let --hosts cut between any two nodes, not only between served segments.",
        ),
    ] = False,
) -> None:
    """Print what a model is served as: in segments by ONNX Runtime, or captured on a GPU.

    A summary first, then a line for each segment: its nodes, its predicted time, what crosses its
    end and how its weights are kept. Of a repository, all models. With --hosts, which parts of it
    should start on which hosts: it is run here, and predicted from that when the first answer
    comes, what a request takes and what bounds them.
    """
    from rich.console import Console

    if not re.fullmatch(r"cpu|cuda:\d+", device):
        raise InvalidConfigurationError(f"there is no device '{device}'; name cpu or cuda:N")
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)

    def tell(entry: Path) -> None:
        if hosts is None:
            lines = _explained(entry, version, device, every=every)
        else:
            lines = _parted(entry, version, device, (hosts, link, registry), anywhere=anywhere)
        for line in lines:
            console.print(line)

    for_each_entry(model, tell)


def _explained(model: Path, version: int | None, device: str, *, every: bool) -> Iterator[str]:
    from brisk.pipelines import is_pipeline

    file = model_file(model, version)
    if is_pipeline(file):
        from brisk.cli.views.entries import pipeline_text

        return pipeline_text(file)
    from brisk.cli.views.segments import captured_text, segments_text

    if device == "cpu":
        return segments_text(file, model if model.is_dir() else None, every=every)
    return captured_text(file, device, every=every)


def _parted(
    model: Path,
    version: int | None,
    device: str,
    network: tuple[int, float, float],
    *,
    anywhere: bool,
) -> Iterator[str]:
    """Return the lines of text on which parts of the model would start on which hosts.

    ``network``: the number of hosts, the Mbit/s of their links and of the registry. Raises
    InvalidConfigurationError for a pipeline or another device than ``cpu``.
    """
    from brisk.cli.views.hosts import hosts_text
    from brisk.partitions.network import HostNetwork
    from brisk.pipelines import is_pipeline

    file = model_file(model, version)
    if is_pipeline(file):
        raise InvalidConfigurationError(
            f"'{file}' is a pipeline; expected one of its networks, which start by themselves"
        )
    if device != "cpu":
        raise InvalidConfigurationError(f"parts of a model run on cpu alone, not on '{device}'")
    entry = model if model.is_dir() else None
    return hosts_text(file, entry, HostNetwork.alike(*network), anywhere=anywhere)


def check(
    repository: Annotated[
        Path,
        typer.Argument(
            help="A model repository, or one model's directory in it.",
            metavar="REPOSITORY",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at a model repository without a server: what a load would refuse, what has no effect.

    Each entry's configuration is completed, compared with its model, and the model given to ONNX
    Runtime, as a load does. Exit status 1 where an entry would not be served.
    """
    from rich.console import Console
    from rich.text import Text

    from brisk.cli.views.checking import PROBLEM, check_repository

    remarks = []
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    for remark in check_repository(repository):
        remarks.append(remark)
        if not as_json:
            version = "" if remark.version is None else f"/{remark.version}"
            head = (f"{remark.severity:<12}", _STYLES[remark.severity])
            name = remark.entry or str(repository)
            console.print(Text.assemble(head, f"{name}{version}: {remark.text}"))
    problems = sum(remark.severity == PROBLEM for remark in remarks)
    if as_json:
        print(json.dumps([remark._asdict() for remark in remarks], indent=1))
    elif not problems:
        console.print(f"nothing in '{repository}' would be refused")
    if problems:
        raise typer.Exit(1)


def doctor(
    repository: Annotated[
        list[Path] | None,
        typer.Option(
            help="A model repository to check in addition to the server's.", metavar="DIR"
        ),
    ] = None,
    device: DeviceOption = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at the deployment on this machine and say what to change, why, and what it costs.

    Looks at the running `tritonserver` of this user, in a container too where its processes can
    be seen; else at what this shell's environment would give one. Exit status 1 where something
    cannot work as it is.
    """
    from brisk.doctor import examine
    from brisk.doctor.deployment import Severity, find_deployment

    for path in repository or ():
        if not path.is_dir():
            raise InvalidConfigurationError(f"model repository '{path}' is no directory")
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
