"""The models whose cold starts are measured: built once, kept in a folder, of fixed batch size."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from brisk_client.benchmarks.engines.model_inputs import GivenInputs, make_inputs

TOKENS = 128


@dataclass(frozen=True, slots=True)
class ColdModel:
    """``kind`` says which paper's row it stands for."""

    name: str
    kind: str
    build: Callable[[int], onnx.ModelProto]


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

    @property
    def size_bytes(self) -> int:
        return self.model.stat().st_size


def _resnet50(batch: int) -> onnx.ModelProto:
    from brisk_client.samples.resnet import build_resnet

    return _fixed(build_resnet("resnet50", (3, 4, 6, 3), 4, seed=50), batch)


def _encoder(batch: int) -> onnx.ModelProto:
    from brisk_client.samples.encoder import build_encoder

    return _fixed(build_encoder("encoder", seed=6), batch)


def _vgg(batch: int) -> onnx.ModelProto:
    from brisk_client.benchmarks.cold.networks.convolutional import build_vgg

    return build_vgg(batch)


def _efficientnet(batch: int) -> onnx.ModelProto:
    from brisk_client.benchmarks.cold.networks.efficientnet import build_efficientnet

    return build_efficientnet(batch)


def _unet(batch: int) -> onnx.ModelProto:
    from brisk_client.benchmarks.cold.networks.convolutional import build_unet

    return build_unet(batch)


def _vit(batch: int) -> onnx.ModelProto:
    from brisk_client.benchmarks.cold.networks.vit import build_vit

    return build_vit(batch)


def _mlp(batch: int) -> onnx.ModelProto:
    from brisk_client.samples.mlp import build_mlp

    return _fixed(build_mlp("mlp", seed=3), batch)


MODELS: tuple[ColdModel, ...] = (
    ColdModel("resnet50", "ResNet", _resnet50),
    ColdModel("vgg16", "VGG", _vgg),
    ColdModel("efficientnet", "EfficientNet", _efficientnet),
    ColdModel("unet", "U-Net", _unet),
    ColdModel("encoder", "MiniLM", _encoder),
    ColdModel("vit", "ViT", _vit),
)

SMOKE = ColdModel("mlp", "three layers, for tests of the benchmark itself", _mlp)


def model_names() -> list[str]:
    return [model.name for model in MODELS]


def model_of(name: str) -> ColdModel:
    """Raises LookupError naming those there are."""
    for model in (*MODELS, SMOKE):
        if model.name == name:
            return model
    raise LookupError(f"there is no model '{name}'; there are: {', '.join(model_names())}")


def default_folder() -> Path:
    """``build/cold`` of a checkout, else ``~/.cache/brisk/bench-cold``."""
    checkout = Path(__file__).resolve().parents[4]
    if (checkout / "pyproject.toml").is_file():
        return checkout / "build" / "cold"
    return Path.home() / ".cache" / "brisk" / "bench-cold"


def build(model: ColdModel, batch: int, folder: Path) -> ModelFiles:
    """Write model and request into ``folder``/NAME-bBATCH, unless they are there."""
    place = folder / f"{model.name}-b{batch}"
    files = ModelFiles(
        model.name, batch, place / "entry" / "1" / "model.onnx", place / "inputs.npz", place
    )
    files.model.parent.mkdir(parents=True, exist_ok=True)
    if not files.model.exists():
        draft = files.model.with_suffix(".part")
        draft.write_bytes(model.build(batch).SerializeToString())
        os.replace(draft, files.model)
    if not files.inputs.exists():
        np.savez(files.inputs, **make_inputs(files.model, {}))
    return files


def given_model(name: str, file: Path, folder: Path, given: GivenInputs) -> ModelFiles:
    """A model of somebody's own, where it lies, with inputs for it in a place of ``folder``.

    What engines prepare is kept there as long as the file is the same. Raises InvalidInputError.
    """
    state = file.stat()
    told = f"{file.resolve()} {state.st_size} {state.st_mtime_ns}"
    place = folder / f"given-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    place.mkdir(parents=True, exist_ok=True)
    inputs = place / "inputs.npz"
    np.savez(inputs, **make_inputs(file, {}, given))
    return ModelFiles(name, 1, file.resolve(), inputs, place, is_given=True)


def _fixed(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """The model with its symbolic sizes set: the first to ``batch``, others to TOKENS."""
    for value in (*model.graph.input, *model.graph.output):
        for position, size in enumerate(value.type.tensor_type.shape.dim):
            if size.HasField("dim_param"):
                size.dim_value = TOKENS if position else batch
    return model
