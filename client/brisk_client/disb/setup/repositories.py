"""Model repositories of the five networks: for Brisk, and as a Triton user has them today."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx

from brisk_client.benchmarks.harness.served_entries import ONNXRUNTIME_MODEL, place_model
from brisk_client.disb.setup.baselines import PYTHON, TritonSetting
from brisk_client.disb.setup.networks import NETWORKS

PEER_PARAMETERS: Mapping[str, str] = {
    "inter_op_thread_count": "1",
    "session.intra_op.allow_spinning": "0",
}
"""Of entries of Triton's C++ backend: what the Python backend's entries set, too."""

SUFFIXES = {"realtime": "rt", "besteffort": "be"}


def write_models(folder: Path) -> dict[str, Path]:
    """The five ONNX files, by network."""
    return save_models(folder, {name: network.build() for name, network in NETWORKS.items()})


def save_models(folder: Path, models: Mapping[str, onnx.ModelProto]) -> dict[str, Path]:
    """Their files in the new ``folder``, by name."""
    folder.mkdir(parents=True)
    files = {name: folder / f"{name}.onnx" for name in models}
    for name, model in models.items():
        onnx.save(model, files[name])
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
    repository: Path,
    files: dict[str, Path],
    wanted: Iterable[tuple[str, str]],
    setting: TritonSetting,
    cores: int,
) -> None:
    """Entries of a backend of Triton's own for ``wanted`` (network, class), as ``setting`` says.

    An entry for each class, as the rate limiter's priorities are an entry's.
    """
    for name, job_class in wanted:
        folder = repository / entry_name(name, job_class) / "1"
        folder.mkdir(parents=True)
        threads = setting.threads_of(job_class, cores)
        text = f'backend: "{setting.backend}"\n' + setting.instance_group(job_class)
        if setting.backend == PYTHON:
            source = ONNXRUNTIME_MODEL.format(file=str(files[name].resolve()), threads=threads)
            (folder / "model.py").write_text(source.lstrip())
        else:
            (folder / "model.onnx").symlink_to(files[name].resolve())
            text += _parameters({**PEER_PARAMETERS, "intra_op_thread_count": str(threads)})
        (folder.parent / "config.pbtxt").write_text(text + _tensors(files[name]))


def _parameters(values: Mapping[str, str]) -> str:
    return "".join(
        f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'
        for name, value in values.items()
    )


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
