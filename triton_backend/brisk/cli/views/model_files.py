"""The files of the model that a command names: its versions, and the chosen one."""

from __future__ import annotations

from pathlib import Path

from brisk.errors import InvalidModelError
from brisk.paths import find_inside
from brisk.protocol.entry_files import MODEL_FILE, PIPELINE_FILE, REMOTE_FILE

_NAMES = (REMOTE_FILE, PIPELINE_FILE, MODEL_FILE)
"""The names that a version's model file may have; of several files, the last one is used."""


def version_files(model_directory: Path) -> dict[int, Path]:
    """Return each version's file (an ONNX model, a pipeline or ``model.remote``), oldest first.

    Raises InvalidModelError if there is none, or one lies outside its version's directory.
    """
    files = {
        int(path.parent.name): version_file
        for name in _NAMES
        for path in model_directory.glob(f"*/{name}")
        if path.parent.name.isdecimal()
        and (version_file := find_inside(path.parent, name, "model file")) is not None
    }
    if not files:
        entries = [path.name for path in sorted(model_directory.glob("*")) if is_model(path)]
        if entries:
            raise InvalidModelError(
                f"'{model_directory}' is a repository; name one of its models, like "
                f"'{model_directory / entries[0]}'"
            )
        if (model_directory / MODEL_FILE).is_file() and model_directory.name.isdecimal():
            raise InvalidModelError(
                f"'{model_directory}' is one version of a model; expected the directory above it, "
                "or the file in it"
            )
        near = next((f"; '{file}' can be named itself" for file in _files_in(model_directory)), "")
        raise InvalidModelError(
            f"'{model_directory}' has no version: expected a file like "
            f"'{model_directory / '1' / 'model.onnx'}'{near}"
        )
    return dict(sorted(files.items()))


def _files_in(directory: Path) -> list[Path]:
    """Return the ONNX files directly in a directory, outside versions."""
    return sorted(directory.glob("*.onnx")) if directory.is_dir() else []


def _check_present(model: Path) -> None:
    if not model.exists():
        raise InvalidModelError(f"there is no model at '{model}'")


def entries_in(model: Path) -> list[Path]:
    """Return ``model`` itself, or a repository's entries that have a model.

    Raises InvalidModelError if there is none.
    """
    _check_present(model)
    if not model.is_dir() or _has_version(model):
        return [model]
    entries = sorted(path for path in model.iterdir() if path.is_dir() and _has_version(path))
    if not entries:
        version_files(model)  # raises what is expected
    return entries


def is_model(directory: Path) -> bool:
    """Whether a path is a model's directory, not a repository."""
    return directory.is_dir() and _has_version(directory)


def _has_version(directory: Path) -> bool:
    return any(
        path.parent.name.isdecimal() for name in _NAMES for path in directory.glob(f"*/{name}")
    )


def model_file(model: Path, version: int | None = None) -> Path:
    """Return the file of ``version`` (the newest for None), or ``model`` itself if it is a file.

    For a ``model.remote``, this is the file in the model's local copy, once it is complete. Raises
    InvalidModelError if there is no file, or no such version.
    """
    _check_present(model)
    if not model.is_dir():
        return model.resolve()  # a link given to a command stands for its target
    files = version_files(model)
    chosen = max(files) if version is None else version
    if chosen not in files:
        raise InvalidModelError(f"'{model}' has no version {chosen}, only {list(files)}")
    file = files[chosen]
    if file.name != REMOTE_FILE:
        return file
    from brisk.copies.courier import fetch

    return fetch(file)
