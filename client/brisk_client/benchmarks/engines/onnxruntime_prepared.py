"""ONNX Runtime's sessions, and its own means to prepare a model: optimised, its weights beside it.

The model is optimised once and saved with its initialisers in a file of their own, which a later
session maps. That session is made with optimisation off, and with or without packing weights
anew: which of the two starts sooner depends on the model, so both are peers.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from brisk_client.benchmarks.engines.process import EngineUnavailableError, run_apart

MODEL, WEIGHTS = "model.onnx", "model.weights"
"""The files of a prepared model."""

EXTERNAL_BYTES = 1024
"""Initialisers from this size on lie in the file of weights."""


def prepare_apart(model: Path, folder: Path, threads: int) -> Path:
    """Make ``folder`` with MODEL and WEIGHTS, unless it is there, in a process of its own.

    Returns the prepared model's file. Raises EngineUnavailableError.
    """
    if not (folder / MODEL).is_file():
        try:
            run_apart(__name__, model, folder, threads)
        except EngineUnavailableError as error:
            raise EngineUnavailableError(
                f"onnxruntime cannot save {model.name} optimised: {error}"
            ) from error
    return folder / MODEL


def prepare(model: Path, folder: Path, threads: int) -> Path:
    """The same in this process. The folder appears whole or not at all."""
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
        open_session(model, options)
        shutil.copytree(draft, folder, dirs_exist_ok=True)
    return folder / MODEL


def session_options(threads: int, *, optimises: bool = True, packs: bool = True) -> Any:
    """ONNX Runtime's defaults with so many threads; errors only in its log.

    ``optimises``: False: it computes the graph as it lies in the file. ``packs``: weights anew.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not optimises:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not packs:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def open_session(model: Path, options: Any) -> Any:
    """A session on the CPU."""
    import onnxruntime

    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
