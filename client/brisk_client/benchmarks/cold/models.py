"""The models whose cold starts are measured: built once, kept in a folder, of fixed batch size."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from brisk_client.benchmarks.cold import networks
from brisk_client.benchmarks.engines.model_inputs import GivenInputs, make_inputs
from brisk_client.benchmarks.harness.command_line import UnusableArgumentError
from brisk_client.samples.encoder import build_encoder
from brisk_client.samples.mlp import build_mlp
from brisk_client.samples.resnet import build_resnet

TOKENS = 128

Build = Callable[[int], onnx.ModelProto]
"""Makes a model of a batch size."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model and one request for it; ``folder`` takes what engines prepare. ``is_given``: it is
    somebody's own, not built here."""

    name: str
    batch: int
    model: Path
    inputs: Path
    folder: Path
    is_given: bool = False


def _fixed(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """The model with its symbolic sizes set: the first to ``batch``, others to TOKENS."""
    for value in (*model.graph.input, *model.graph.output):
        for position, size in enumerate(value.type.tensor_type.shape.dim):
            if size.HasField("dim_param"):
                size.dim_value = TOKENS if position else batch
    return model


MODELS: Mapping[str, Build] = {
    "resnet50": lambda batch: _fixed(build_resnet("resnet50", (3, 4, 6, 3), 4, seed=50), batch),
    "vgg16": networks.build_vgg,
    "efficientnet": networks.build_efficientnet,
    "unet": networks.build_unet,
    "encoder": lambda batch: _fixed(build_encoder("encoder", seed=6), batch),
    "vit": networks.build_vit,
}

SMOKE = "mlp"
"""Three layers, for tests of the benchmark itself."""


def model_named(name: str) -> Build:
    """Raises UnusableArgumentError naming those there are."""
    if name == SMOKE:
        return lambda batch: _fixed(build_mlp("mlp", seed=3), batch)
    if name not in MODELS:
        raise UnusableArgumentError(f"there is no model '{name}'; there are: {', '.join(MODELS)}")
    return MODELS[name]


def default_folder() -> Path:
    """``build/cold`` of a checkout, else ``~/.cache/brisk/bench-cold``."""
    checkout = Path(__file__).resolve().parents[4]
    if (checkout / "pyproject.toml").is_file():
        return checkout / "build" / "cold"
    return Path.home() / ".cache" / "brisk" / "bench-cold"


def build(name: str, batch: int, folder: Path) -> ModelFiles:
    """Write model and request into ``folder``/NAME-bBATCH, unless they are there."""
    place = folder / f"{name}-b{batch}"
    files = ModelFiles(
        name, batch, place / "entry" / "1" / "model.onnx", place / "inputs.npz", place
    )
    files.model.parent.mkdir(parents=True, exist_ok=True)
    if not files.model.exists():
        draft = files.model.with_suffix(".part")
        draft.write_bytes(model_named(name)(batch).SerializeToString())
        os.replace(draft, files.model)
    if not files.inputs.exists():
        np.savez(files.inputs, **make_inputs(files.model, {}))
    return files


def given_model(name: str, file: Path, folder: Path, given: GivenInputs) -> ModelFiles:
    """A model of somebody's own, where it lies, with inputs for it in a place of ``folder``.

    What engines prepare is kept there as long as the file is the same. Raises
    UnusableArgumentError.
    """
    state = file.stat()
    told = f"{file.resolve()} {state.st_size} {state.st_mtime_ns}"
    place = folder / f"given-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    place.mkdir(parents=True, exist_ok=True)
    inputs = place / "inputs.npz"
    np.savez(inputs, **make_inputs(file, {}, given))
    return ModelFiles(name, 1, file.resolve(), inputs, place, is_given=True)
