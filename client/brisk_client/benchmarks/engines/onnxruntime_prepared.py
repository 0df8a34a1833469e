"""ONNX Runtime prepared by its own means: an optimised model whose weights lie beside it.

The model is optimised once and saved with its initialisers in a file of their own, which a later
session maps. That session is made with optimisation off, and with or without packing weights
anew: which of the two starts sooner depends on the model, so both are peers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODEL, WEIGHTS = "model.onnx", "model.weights"
"""The files of a prepared model."""

EXTERNAL_BYTES = 1024
"""Initialisers from this size on lie in the file of weights."""

VARIABLES = {"ORT_DISABLE_TELEMETRY": "1"}
"""For every process with ONNX Runtime: without it a session reads and writes a database."""

_TIMEOUT_S = 900.0


class NotPreparedError(Exception):
    """ONNX Runtime cannot optimise or save this model; the message says why."""


class EndedApartError(Exception):
    """A process of its own did not end well; the message is the last line that it said."""


def run_apart(module: str, *arguments: object) -> str:
    """What ``python -m module`` prints, with VARIABLES. Raises EndedApartError."""
    ended = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **VARIABLES},
        timeout=_TIMEOUT_S,
        check=False,
    )
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"status {ended.returncode}"]
        raise EndedApartError(lines[-1])
    return ended.stdout


def prepare_apart(model: Path, folder: Path, threads: int) -> Path:
    """Make ``folder`` with MODEL and WEIGHTS, unless it is there, in a process of its own.

    Returns the prepared model's file. Raises NotPreparedError.
    """
    if not (folder / MODEL).is_file():
        try:
            run_apart(__name__, model, folder, threads)
        except EndedApartError as error:
            raise NotPreparedError(
                f"onnxruntime cannot save {model.name} optimised: {error}"
            ) from error
    return folder / MODEL


def prepare(model: Path, folder: Path, threads: int) -> Path:
    """The same in this process. The folder appears whole or not at all."""
    import onnxruntime

    if (folder / MODEL).is_file():
        return folder / MODEL
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".optimising-") as draft:
        options = session_options(threads)
        options.optimized_model_filepath = str(Path(draft) / MODEL)
        for key, value in (("file_name", WEIGHTS), ("min_size_in_bytes", str(EXTERNAL_BYTES))):
            options.add_session_config_entry(
                f"session.optimized_model_external_initializers_{key}", value
            )
        onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        shutil.copytree(draft, folder, dirs_exist_ok=True)
    return folder / MODEL


def prepared_options(threads: int, *, prepacking: bool) -> Any:
    """Options for a session of a prepared model."""
    options = unoptimised_options(threads)
    options.add_session_config_entry("session.disable_prepacking", str(int(not prepacking)))
    return options


def unoptimised_options(threads: int) -> Any:
    """Options for a session that computes the graph as it lies in the file."""
    import onnxruntime

    options = session_options(threads)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def session_options(threads: int) -> Any:
    """ONNX Runtime's defaults with so many threads; errors only in its log."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
