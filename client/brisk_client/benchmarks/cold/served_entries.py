"""The entries of the served part: one model, as users of each engine would serve it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from brisk_client.benchmarks.cold.models import ModelFiles
from brisk_client.benchmarks.served_entries import (
    ONNXRUNTIME_MODEL,
    TORCH_EXECUTE,
    write_brisk_entry,
    write_python_entry,
)

BRISK, UNPREPARED = "brisk", "brisk unprepared"

MAPPED_TORCH_MODEL = (
    """
import torch
import triton_python_backend_utils as pb_utils
from brisk_client.benchmarks.eager import NETWORKS


class TritonPythonModel:
    def initialize(self, args):
        torch.set_num_threads({threads})
        with torch.device("meta"):
            self.network = NETWORKS[{network!r}]().eval()
        weights = torch.load({weights!r}, mmap=True, weights_only=True)
        self.network.load_state_dict(weights, assign=True)

"""
    + TORCH_EXECUTE
)


def write_cold_entries(repository: Path, files: ModelFiles, threads: int) -> dict[str, str]:
    """Entry names by engine. Brisk's have files of their own: a shared one is a shared session.

    torch is left out where the model has no torch form.
    """
    import torch

    from brisk.execution.preparation import prepare

    entries = {}
    for engine in (BRISK, UNPREPARED):
        name = engine.replace(" ", "_")
        write_brisk_entry(repository, files.model, name)
        model = repository / name / "1" / "model.onnx"
        model.unlink()
        _place(files.model, model)
        if engine == BRISK:
            prepare(model, torch.device("cpu"), threads)
        entries[engine] = name
    write_python_entry(
        repository, files.model, "onnxruntime", ONNXRUNTIME_MODEL, {"threads": threads}
    )
    entries["onnxruntime"] = "onnxruntime"
    weights = _torch_weights(files)
    if weights is not None:
        values = {"threads": threads, "network": files.name, "weights": str(weights)}
        write_python_entry(repository, files.model, "torch", MAPPED_TORCH_MODEL, values)
        entries["torch"] = "torch"
    return entries


def _place(source: Path, target: Path) -> None:
    """A hard link where the file systems allow, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _torch_weights(files: ModelFiles) -> Path | None:
    """The weights of the same network in torch, saved once; None where it has no torch form."""
    import torch

    from brisk_client.benchmarks.eager import NETWORKS

    if files.name not in NETWORKS:
        return None
    target = files.folder / "torch.pt"
    if not target.exists():
        torch.manual_seed(0)
        torch.save(NETWORKS[files.name]().state_dict(), target)
    return target
