"""Entries of one model as each side's users write them: complete, or left to the server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from brisk_client.benchmarks.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    ONNXRUNTIME_PREPARED_MODEL,
)
from brisk_client.benchmarks.start.case import Case

ENTRY = "model"
"""The name of the only entry of each side's repository."""

COMPLETION = """
    @staticmethod
    def auto_complete_config(config):
        for name, datatype, dims in {inputs!r}:
            config.add_input({{"name": name, "data_type": datatype, "dims": dims}})
        for name, datatype, dims in {outputs!r}:
            config.add_output({{"name": name, "data_type": datatype, "dims": dims}})
        config.set_max_batch_size(0)
        return config
"""
"""What a Python model says of itself, written down: it opens no file for it."""


class Configuration(str, Enum):
    """How much of an entry its user wrote, and what the server does about the rest.

    ``complete``: all, and the server runs with ``--disable-auto-complete-config``.
    ``completed``: all, and the server completes it nevertheless, as it does by default.
    ``platform``: the backend alone (``platform: "onnxruntime_onnx"`` where the side has it).
    """

    COMPLETE = "complete"
    COMPLETED = "complete, completed again"
    PLATFORM = "platform alone"

    @property
    def options(self) -> tuple[str, ...]:
        """Of the server."""
        return ("--disable-auto-complete-config",) if self is Configuration.COMPLETE else ()


def write_config(
    repository: Path, case: Case, configuration: Configuration, backend: str, more: str = ""
) -> Path:
    """Write ENTRY's ``config.pbtxt``; the folder of its version 1. ``more``: settings that a
    complete entry has besides."""
    folder = repository / ENTRY / "1"
    folder.mkdir(parents=True, exist_ok=True)
    if configuration is Configuration.PLATFORM:
        has_platform = backend in ("brisk", "onnxruntime")
        text = 'platform: "onnxruntime_onnx"\n' if has_platform else f'backend: "{backend}"\n'
    else:
        text = f'name: "{ENTRY}"\nbackend: "{backend}"\nmax_batch_size: 0\n'
        for side, tensors in zip(("input", "output"), case.signature, strict=True):
            for tensor in tensors:
                text += (
                    f"{side} [ {{ name: {json.dumps(tensor.name)} data_type: {tensor.datatype} "
                    f"dims: {list(tensor.dims)} }} ]\n"
                )
        text += "instance_group [ { count: 1 kind: KIND_CPU } ]\n" + more
    (folder.parent / "config.pbtxt").write_text(text)
    return folder


def write_model(repository: Path, case: Case, configuration: Configuration, backend: str) -> None:
    """An entry of a backend that reads ``model.onnx``: the case's, a file of the entry's own."""
    place(case.file, write_config(repository, case, configuration, backend) / "model.onnx")


def write_python(
    repository: Path,
    case: Case,
    configuration: Configuration,
    file: Path,
    values: Mapping[str, object],
) -> None:
    """An entry of the Python backend that has ONNX Runtime compute ``file``.

    ``values``: ``threads``, and ``no_prepacking`` for a model that was prepared.
    """
    folder = write_config(repository, case, configuration, "python")
    template = ONNXRUNTIME_PREPARED_MODEL if "no_prepacking" in values else ONNXRUNTIME_MODEL
    source = template.format(file=str(file), **values).lstrip()
    if configuration is not Configuration.COMPLETE:
        inputs, outputs = (
            [(tensor.name, tensor.datatype, list(tensor.dims)) for tensor in tensors]
            for tensors in case.signature
        )
        source += COMPLETION.format(inputs=inputs, outputs=outputs)
    (folder / "model.py").write_text(source)


def place(source: Path, target: Path) -> None:
    """A copy; what stood there goes.

    No hard link: making one changes the file's times for all that have it, and with that what an
    artefact knows of its model. No entry of a user is written anew between two starts.
    """
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)
