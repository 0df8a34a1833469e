"""Artefacts: what a start needs, kept from an earlier one of the same model and machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from brisk.doctor.base import Deployment, Finding, Verdict
from brisk.errors import ArtefactError

NAME = "artefacts"


def look(deployment: Deployment) -> Iterator[Finding]:
    """Artefacts are looked for where the server would look, as seen from here."""
    files = [
        file
        for repository in deployment.repositories
        for file in sorted(repository.glob("*/*/model.onnx"))
        if file.parent.name.isdigit()
    ]
    missing, stale = [], []
    for file in files:
        try:
            if not _is_there(deployment, file):
                missing.append(file)
        except ArtefactError as error:
            stale.append(f"{file}: {error}")
    for text in stale:
        yield Finding(
            NAME,
            Verdict.ADVICE,
            f"stale or damaged: {text}",
            "it is ignored: the model starts as slowly as the first time",
            "`brisk prepare` writes a new one; so does the runtime, after the next start",
        )
    if missing:
        names = ", ".join(str(file.parent.parent.name) for file in missing[:5])
        yield Finding(
            NAME,
            Verdict.ADVICE,
            f"{len(missing)} of {len(files)} models have none here ({names})",
            "their next start reads and transforms all weights (docs/cold-start.md has figures)",
            "`brisk prepare MODEL_DIR`, or nothing: the runtime writes them after a start",
        )
    elif files and not stale:
        yield Finding(NAME, Verdict.GOOD, f"all {len(files)} models have one that fits")


def _is_there(deployment: Deployment, file: Path) -> bool:
    """Raises ArtefactError where there is one that cannot be used."""
    import torch

    from brisk.execution.artefact import find_artefact, open_artefact

    text = deployment.environment.get("BRISK_THREADS", "")
    threads = int(text) if text.isdecimal() else len(os.sched_getaffinity(deployment.server or 0))
    device = torch.device(deployment.device)
    found = find_artefact(file, device, threads, deployment.environment)
    if found is None:
        return False
    open_artefact(found, file, device, threads, deployment.environment)
    return True
