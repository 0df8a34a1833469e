"""Model repositories of the five networks: for Brisk, and as a Triton user has them today."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx

from brisk_client.benchmarks.served_entries import ONNXRUNTIME_MODEL, place_model
from brisk_client.disb.networks import NETWORKS

INSTANCES = 2
"""Of each baseline entry, and executions at once by the rate limiter: one for each core."""

SUFFIXES = {"realtime": "rt", "besteffort": "be"}

TRITON_OPTIONS = ("--rate-limit=execution_count", f"--rate-limit-resource=core:{INSTANCES}")


def write_models(folder: Path) -> dict[str, Path]:
    """The five ONNX files, by network."""
    folder.mkdir(parents=True)
    files = {}
    for name, network in NETWORKS.items():
        files[name] = folder / f"{name}.onnx"
        onnx.save(network.build(), files[name])
    return files


def write_brisk(
    repository: Path, files: dict[str, Path], wanted: Iterable[tuple[str, str]]
) -> None:
    """Entries of Brisk's for ``wanted`` (network, class), whose class is the entry's default."""
    for name, job_class in wanted:
        folder = repository / entry_name(name, job_class) / "1"
        folder.mkdir(parents=True)
        place_model(files[name], folder / "model.onnx")
        text = (
            'backend: "brisk"\n'
            f'parameters {{ key: "brisk_class" value {{ string_value: "{job_class}" }} }}\n'
        )
        (folder.parent / "config.pbtxt").write_text(text + _tensors(files[name]))


def write_triton(
    repository: Path, files: dict[str, Path], wanted: Iterable[tuple[str, str]], threads: int
) -> None:
    """Entries of the Python backend that call ONNX Runtime, for ``wanted`` (network, class).

    An entry for each class, as the rate limiter's priorities are an entry's: real-time 1,
    best-effort 100 (executions are granted in inverse proportion). No more than ``INSTANCES``
    executions run at once over all entries.
    """
    for name, job_class in wanted:
        folder = repository / entry_name(name, job_class) / "1"
        folder.mkdir(parents=True)
        source = ONNXRUNTIME_MODEL.format(file=str(files[name].resolve()), threads=threads)
        (folder / "model.py").write_text(source.lstrip())
        priority = 1 if job_class == "realtime" else 100
        text = (
            'backend: "python"\n'
            f"instance_group [ {{ count: {INSTANCES} kind: KIND_CPU rate_limiter {{ resources "
            f'[ {{ name: "core" count: 1 global: true }} ] priority: {priority} }} }} ]\n'
        )
        (folder.parent / "config.pbtxt").write_text(text + _tensors(files[name]))


def entry_name(network: str, job_class: str) -> str:
    return f"{network}_{SUFFIXES[job_class]}"


def _tensors(file: Path) -> str:
    """Inputs and outputs of ``config.pbtxt``, all of fixed shape."""
    graph = onnx.load(file, load_external_data=False).graph
    text = "max_batch_size: 0\n"
    for side, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            sizes = [size.dim_value for size in value.type.tensor_type.shape.dim]
            text += f'{side} [ {{ name: "{value.name}" data_type: TYPE_FP32 dims: {sizes} }} ]\n'
    return text
