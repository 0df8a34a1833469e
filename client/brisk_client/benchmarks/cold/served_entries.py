"""The entries of the served part: one model, as users of each engine would serve it."""

from __future__ import annotations

from pathlib import Path

from brisk_client.benchmarks.cold.models import ModelFiles
from brisk_client.benchmarks.cold.registry import PREPARED_PEERS
from brisk_client.benchmarks.engines.onnxruntime_prepared import prepare_apart
from brisk_client.benchmarks.harness.machine import installed_versions
from brisk_client.benchmarks.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    ONNXRUNTIME_PREPARED_MODEL,
    TORCH_EXECUTE,
    write_brisk_entry,
    write_python_entry,
)

BRISK, UNPREPARED = "brisk", "brisk unprepared"

MAPPED_TORCH_MODEL = (
    """
from pathlib import Path

import torch
import triton_python_backend_utils as pb_utils
from brisk_client.benchmarks.engines.eager import mapped_network


class TritonPythonModel:
    def initialize(self, args):
        torch.set_num_threads({threads})
        self.network = mapped_network({network!r}, Path({weights!r}))

"""
    + TORCH_EXECUTE
)


def write_cold_entries(repository: Path, files: ModelFiles, threads: int) -> dict[str, str]:
    """Entry names by engine. Brisk's have files of their own: a shared one is a shared session.

    What Brisk prepares lies in the cache directory. torch is left out where the model has no
    torch form. Raises NotPreparedError where ONNX Runtime cannot save the model.
    """
    from brisk.segments.prepared.preparation import prepare
    from brisk_client.benchmarks.engines.eager import NETWORKS, saved_weights

    entries = {}
    for engine in (BRISK, UNPREPARED):
        name = engine.replace(" ", "_")
        write_brisk_entry(repository, files.model, name)
        model = repository / name / "1" / "model.onnx"
        if engine == BRISK:
            prepare(model, threads)
        entries[engine] = name
    write_python_entry(
        repository, files.model, "onnxruntime", ONNXRUNTIME_MODEL, {"threads": threads}
    )
    entries["onnxruntime"] = "onnxruntime"
    version = installed_versions("onnxruntime")["onnxruntime"]
    optimised = prepare_apart(
        files.model, files.folder / f"onnxruntime-{version}-optimised", threads
    )
    for no_packing, engine in enumerate(PREPARED_PEERS):
        entries[engine] = engine.replace(" ", "_")
        source = ONNXRUNTIME_PREPARED_MODEL.replace("{file!r}", repr(str(optimised.resolve())))
        settings = {"threads": threads, "no_prepacking": no_packing}
        write_python_entry(repository, files.model, entries[engine], source, settings)
    if files.name in NETWORKS:
        weights = saved_weights(files.name, files.folder)
        values = {"threads": threads, "network": files.name, "weights": str(weights)}
        write_python_entry(repository, files.model, "torch", MAPPED_TORCH_MODEL, values)
        entries["torch"] = "torch"
    return entries
