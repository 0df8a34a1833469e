"""ONNX files that a benchmark is given: named one by one, or all those in a folder."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path


class NoModelsError(Exception):
    """What was given is no ONNX file, or a folder without any; the message names it."""


def add_models_option(parser: argparse.ArgumentParser) -> None:
    """``--models DIR``, which may be given several times."""
    parser.add_argument(
        "--models",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="all *.onnx files in it and below, a row each, and geometric means "
        "(`brisk bench real_models DIR` lays out such a folder)",
    )


def models_in(folders: Sequence[Path]) -> list[Path]:
    """Every ``*.onnx`` file in the folders and below, in order, hidden folders left out.

    Raises NoModelsError where a folder is none or has no such file.
    """
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise NoModelsError(f"{folder} is no folder")
        files = [
            file
            for file in sorted(folder.rglob("*.onnx"))
            if file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(folder).parts)
        ]
        if not files:
            raise NoModelsError(f"{folder} holds no *.onnx file, nor does a folder in it")
        found += files
    return found


def check_files(files: Sequence[Path]) -> None:
    """Raises NoModelsError for one that is no file."""
    for file in files:
        if not file.is_file():
            raise NoModelsError(f"there is no file {file}")


def labelled(files: Sequence[Path]) -> Mapping[str, Path]:
    """The files by a name that tells them apart: ENTRY/VERSION of a repository, a folder's name
    for its ``model.onnx``, else the file's own, behind its folder's where two have the same."""
    names = [_label(file) for file in files]
    taken = Counter(names)
    found: dict[str, Path] = {}
    for name, file in zip(names, files, strict=True):
        label = name if taken[name] == 1 else f"{file.resolve().parent.name}/{name}"
        found[label if label not in found else str(file)] = file
    return found


def _label(file: Path) -> str:
    parent = file.resolve().parent
    if parent.name.isdigit():
        return f"{parent.parent.name}/{parent.name}"
    return parent.name if file.stem == "model" else file.stem
