"""The files of an entry: their names, and their paths in a server that reads a view of them.

A view (``brisk.view``) shows the repository ``/data/models`` as ``<view>/data/models``, so that
Triton's messages name the user's files, and the user's path follows from the text of a path in the
view. A stub uses the user's paths, so that links are checked there, as without a view.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from brisk.paths import listed

MODEL_FILE = "model.onnx"
PIPELINE_FILE = "pipeline.json"
"""The description of a pipeline, whose several networks answer one request; it takes the place of
MODEL_FILE."""
REMOTE_FILE = "model.remote"
"""The URL and digest of the manifest of a MODEL_FILE that lies elsewhere, in its place."""
CONFIG_FILE = "config.pbtxt"
"""The entry's configuration, next to its version directories."""

VIEW_VARIABLE = "_BRISK_REPOSITORY_VIEW"
"""The variable with the directory of the view that a server reads; only ``brisk serve`` sets
it."""

REFUSED = "brisk_refused"
"""The parameter of a view's configuration that says why Brisk could not complete the user's."""


_UNREADABLE = "cannot be read; expected a directory that the server's user may read"


def layout_problem(repository: Path) -> str | None:
    """Return why a repository, or a model file in it, would not be served; None if it may be.

    Raises OSError if the repository cannot be read.
    """
    expected = f"expected a directory for each model, with files like my_model/1/{MODEL_FILE}"
    inside = sorted(path for path in repository.iterdir() if not path.name.startswith("."))
    os.stat(f"{repository}/.")  # raises where it may be listed and not be entered
    flat = next((path.name for path in inside if path.suffix == ".onnx"), None)
    if flat is not None:
        return f"'{flat}' lies in the repository itself; {expected}"
    if not any(map(os.path.isdir, inside)):
        return f"there is no model in it; {expected}"
    return None


def versions_in(entry: Path) -> list[int]:
    """Return the versions that Triton sees in an entry's directory, oldest first; none if it
    cannot be listed.
    """
    return sorted(
        int(path.name)
        for path in listed(entry)
        if path.name.isascii()
        and path.name.isdecimal()
        and os.path.isdir(path)  # which is false where it cannot be looked at
        and str(int(path.name)) == path.name
    )


def is_text(name: str) -> bool:
    """Whether a file's name is UTF-8 text: others have surrogates for their bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def entry_problem(entry: Path) -> str | None:
    """Return why Triton would load nothing from an entry's directory, judged only by file names;
    None if it may load it.
    """
    expected = f"expected a file like 1/{MODEL_FILE}"
    if not is_text(entry.name):
        return "its name is no UTF-8 text, which Triton needs; rename it"
    if not _is_readable(entry):
        return f"it {_UNREADABLE}"
    inside = sorted(path for path in listed(entry) if not path.name.startswith("."))
    versions = versions_in(entry)
    if not versions:
        if os.path.isfile(entry / MODEL_FILE) and entry.name.isdecimal():
            return "it has no version; this looks like one model: give the folder above it"
        for path in inside:
            if os.path.isdir(path):
                return f"it has no version: '{path.name}' is no version's number; {expected}"
            if path.name != CONFIG_FILE:
                return f"it has no version: '{path.name}' lies in the entry itself; {expected}"
        return f"it has no version; {expected}"
    if not any(_is_readable(entry / str(each)) for each in versions):
        return f"'{entry.name}/{versions[-1]}' {_UNREADABLE}"
    files = sorted({path.name for each in versions for path in listed(entry / str(each))})
    if os.path.lexists(entry / CONFIG_FILE):
        return None
    if not files:
        return f"its versions are empty; {expected}"
    if "." not in entry.name and not any(name.startswith("model.") for name in files):
        return (
            f"it has no {CONFIG_FILE}, and '{files[0]}' does not say by its name whose model it "
            f"is; {expected}"
        )
    return None


def _is_readable(directory: Path) -> bool:
    return os.access(directory, os.R_OK | os.X_OK)


def is_pipeline(path: Path) -> bool:
    """Whether an entry's model file is a pipeline, by its name."""
    return path.suffix == Path(PIPELINE_FILE).suffix


def is_behind_view(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this server runs without Triton's completion because Brisk completes entries."""
    return bool(environment.get(VIEW_VARIABLE))


def users_path(path: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's path of a file or directory that the server sees at ``path``: the same
    unless it is in a view."""
    view = environment.get(VIEW_VARIABLE)
    if not view or not path.is_relative_to(view):
        return path
    return Path("/") / path.relative_to(view)
