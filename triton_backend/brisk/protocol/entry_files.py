"""An entry's files: their names, and where they are for a server that reads a view of them.

A view (``brisk.view``) shows the repository ``/data/models`` as ``<view>/data/models``, so that
Triton's messages name the user's files and a path is led back by its own text. A stub looks for
files where the user has them: what they may lead to is judged there, as without a view.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

MODEL_FILE = "model.onnx"
PIPELINE_FILE = "pipeline.json"
"""Where another entry has MODEL_FILE: several networks that answer one request."""
REMOTE_FILE = "model.remote"
"""Where a version has MODEL_FILE that lies elsewhere: the URL and digest of its manifest."""
CONFIG_FILE = "config.pbtxt"
"""Of the entry itself, beside its version directories."""

VIEW_VARIABLE = "_BRISK_REPOSITORY_VIEW"
"""Of a server that reads one: its directory. Set by ``brisk serve``, and by nobody else."""

REFUSED = "brisk_refused"
"""A parameter of a view's configuration: why Brisk could not complete the user's."""


def layout_problem(repository: Path) -> str | None:
    """Why nothing of a repository would be served, or a model in it not; None where it may be.

    Raises OSError where it cannot be listed.
    """
    expected = f"expected a directory for each model, with files like my_model/1/{MODEL_FILE}"
    inside = sorted(path for path in repository.iterdir() if not path.name.startswith("."))
    flat = next((path.name for path in inside if path.suffix == ".onnx"), None)
    if flat is not None:
        return f"'{flat}' lies in the repository itself; {expected}"
    if not any(path.is_dir() for path in inside):
        return f"there is no model in it; {expected}"
    return None


def is_pipeline(path: Path) -> bool:
    """Whether an entry's file is a pipeline's, by its name."""
    return path.suffix == Path(PIPELINE_FILE).suffix


def is_behind_view(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this server runs without Triton's completion because Brisk completes entries."""
    return bool(environment.get(VIEW_VARIABLE))


def users_path(path: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the user has what the server sees at ``path``; the same where that is in no view."""
    view = environment.get(VIEW_VARIABLE)
    if not view or not path.is_relative_to(view):
        return path
    return Path("/") / path.relative_to(view)
