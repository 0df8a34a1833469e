"""The files of the model that a command names: its versions, and the chosen one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brisk.errors import BriskError, InvalidModelError
from brisk.protocol.entry_files import (
    CONFIG_FILE,
    MODEL_FILE,
    PIPELINE_FILE,
    REMOTE_FILE,
    versions_in,
)
from brisk.stub.config.entry import find_file, find_model
from brisk.view.entry_text import written_config

SERVED = ("brisk", "onnxruntime")
"""The backends whose entries are Brisk's own, or could be."""

PLATFORM = "onnxruntime_onnx"
"""The platform of entries of the ONNX Runtime backend."""

_NAMES = (MODEL_FILE, PIPELINE_FILE, REMOTE_FILE)
_SUFFIXES = (".onnx", ".ort")


def version_files(model_directory: Path) -> dict[int, Path]:
    """Return each version's file (an ONNX model, a pipeline or ``model.remote``), oldest first.

    Raises InvalidModelError if there is none, one lies outside its version's directory, or several
    are possible; InvalidConfigurationError if ``config.pbtxt``, which may name it, cannot be read.
    """
    config, versions = _configured_versions(model_directory)
    found = {version: find_file(model_directory, version, config) for version in versions}
    files = {version: file for version, file in found.items() if file is not None}
    if not files:
        find_model(model_directory, versions[-1], config)  # raises what is expected
    return files


def _configured_versions(model_directory: Path) -> tuple[Mapping[str, Any], list[int]]:
    """Return the entry's configuration and its versions, oldest first. Raises InvalidModelError,
    InvalidConfigurationError."""
    if not is_model(model_directory):
        raise _no_model(model_directory)
    return written_config(model_directory), versions_in(model_directory)


def _version_file(model_directory: Path, version: int | None) -> Path:
    """Return the file of one version as ``version_files`` does, whatever is wrong with others."""
    config, versions = _configured_versions(model_directory)
    for each in reversed(versions):
        if version in (None, each) and (file := find_file(model_directory, each, config)):
            return file
    present = [each for each in versions if _is_present(model_directory, each, config)]
    if not present:
        find_model(model_directory, versions[-1], config)  # raises what is expected
    raise InvalidModelError(f"'{model_directory}' has no version {version}, only {present}")


def _is_present(model_directory: Path, version: int, config: Mapping[str, Any]) -> bool:
    """Whether a version has a file, even if it cannot be served."""
    try:
        return find_file(model_directory, version, config) is not None
    except InvalidModelError:
        return True


def _no_model(directory: Path) -> InvalidModelError:
    """Return the error that says why a directory is no model's, and what is."""
    entries = [path.name for path in sorted(directory.glob("*")) if is_model(path)]
    if entries:
        return InvalidModelError(
            f"'{directory}' is a repository; name one of its models, like "
            f"'{directory / entries[0]}'"
        )
    if (directory / MODEL_FILE).exists() and directory.name.isdecimal():
        return InvalidModelError(
            f"'{directory}' is one version of a model; expected the directory above it, "
            "or the file in it"
        )
    files = sorted(directory.glob("*.onnx"))
    near = f"; '{files[0]}' can be named itself" if files else ""
    return InvalidModelError(
        f"'{directory}' has no version: expected a file like "
        f"'{directory / '1' / 'model.onnx'}'{near}"
    )


def _check_present(model: Path) -> None:
    if not model.exists():
        raise InvalidModelError(f"there is no model at '{model}'")


def entries_in(model: Path) -> list[Path]:
    """Return a repository's entries that could be Brisk's, or ``model`` itself if it is none.

    Raises InvalidModelError if there is nothing.
    """
    _check_present(model)
    if not model.is_dir() or is_model(model):
        return [model]
    entries = [path for path in sorted(model.iterdir()) if is_model(path) and _is_ours(path)]
    return entries or [model]


def is_model(directory: Path) -> bool:
    """Whether a path is the directory of a model with versions, not a repository, whose entries
    may have numbers for names, too."""
    versions = [directory / str(version) for version in versions_in(directory)]
    return bool(versions) and (
        (directory / CONFIG_FILE).exists() or not all(versions_in(version) for version in versions)
    )


def _is_ours(entry: Path) -> bool:
    """Whether a command over a repository looks at an entry: by its backend, or else by the names
    of its models. True if a load would be refused, which the command says."""
    try:
        config = written_config(entry)
        if config.get("backend", config.get("platform")) in (*SERVED, PLATFORM):
            return True
        files = [find_file(entry, version, config) for version in versions_in(entry)]
    except BriskError:
        return True
    return any(file and (file.name in _NAMES or file.suffix in _SUFFIXES) for file in files)


def model_file(model: Path, version: int | None = None) -> Path:
    """Return the file of ``version`` (the newest for None), or ``model`` itself if it is a file.

    For a ``model.remote``, this is the file in the model's local copy, once it is complete. Raises
    like ``version_files``, but for the chosen version alone, and InvalidModelError if there is no
    such version, as of a file.
    """
    _check_present(model)
    if not model.is_dir():
        if version is not None:
            raise InvalidModelError(
                f"'{model}' is a file, which has no version {version}; expected the directory of "
                "a model, or no --version"
            )
        return model.resolve()  # a link given to a command stands for its target
    file = _version_file(model, version)
    if file.name != REMOTE_FILE:
        return file
    from brisk.copies.courier import fetch

    return fetch(file)
