"""The models of a deployment's repositories, and how their entries want them computed."""

from __future__ import annotations

from pathlib import Path

from brisk.doctor.base import Deployment
from brisk.protocol.entry_files import MODEL_FILE
from brisk.stub.config.session_tuning import read_tuning
from brisk.tuning import SessionTuning
from brisk.view.written_config import written_config


def model_files(deployment: Deployment) -> list[Path]:
    """The ONNX file of every version of every entry."""
    return [
        file
        for repository in deployment.repositories
        for file in sorted(repository.glob(f"*/*/{MODEL_FILE}"))
        if file.parent.name.isdecimal()
    ]


def entry_tuning(file: Path) -> SessionTuning:
    """Of the entry that ``file`` belongs to.

    Raises InvalidConfigurationError and InvalidModelError where it says what cannot be had.
    """
    entry = file.parent.parent
    return read_tuning(written_config(entry), entry, file).tuning
