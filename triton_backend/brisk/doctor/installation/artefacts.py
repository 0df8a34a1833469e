"""Prepared forms: what a start needs, kept from an earlier one of the same model and machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from brisk.doctor.base import Deployment, Finding, Severity
from brisk.doctor.entries import entry_tuning, model_files
from brisk.errors import ArtefactError, BriskError

NAME = "artefacts"


def look(deployment: Deployment) -> Iterator[Finding]:
    """Looked for where the server would look, as seen from here."""
    if deployment.device != "cpu":
        yield Finding(NAME, Severity.GOOD, "models on a GPU have none")
        return
    files = [file for file in model_files(deployment) if _uses_one(file)]
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
            Severity.ADVICE,
            f"stale or damaged: {text}",
            "it is ignored: the model starts as slowly as the first time",
            "`brisk prepare` writes a new one; so does the runtime, after the next start",
        )
    if missing:
        names = ", ".join(str(file.parent.parent.name) for file in missing[:5])
        yield Finding(
            NAME,
            Severity.ADVICE,
            f"{len(missing)} of {len(files)} models have none here ({names})",
            "their next start reads and cuts the model's file, and what runs fast is optimised "
            "anew after it (docs/how-it-works/cold-start.md has figures)",
            "`brisk prepare MODEL_DIR`, or nothing: the runtime writes them after a start",
        )
    elif files and not stale:
        yield Finding(NAME, Severity.GOOD, f"all {len(files)} models have one that fits")


def _uses_one(file: Path) -> bool:
    """Whether a prepared form can serve the entry; one that cannot be read is another check's."""
    try:
        return entry_tuning(file).keeps_answers
    except BriskError:
        return False


def _is_there(deployment: Deployment, file: Path) -> bool:
    """Raises ArtefactError where there is one that cannot be used."""
    from brisk.exits.files.container import tapped_values
    from brisk.exits.files.versions import latest
    from brisk.segments.prepared.form import PreparedModel, find_prepared

    taps = tapped_values(latest(file, deployment.environment))
    found = find_prepared(file, taps, deployment.environment)
    if found is None:
        return False
    PreparedModel(found, file, 1, taps, environment=deployment.environment).check()
    return True
