"""The networks of `brisk bench pipeline`: trained once, kept in the cache directory.

Three tasks (which kind, which digit, which shape), three convolutional networks of different depth
for each, learned caches for those of the first one; and a join, which is not trained.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from brisk.exits.artefact import caches_file, write_cascade
from brisk.exits.exploration import ExplorationSettings, explore
from brisk.exits.samples import Samples
from brisk_client.benchmarks.pipeline_scenes import (
    DIGITS,
    NOISE,
    SHAPES,
    SIDE,
    Scenes,
    make_scenes,
)
from brisk_client.samples.writer import GraphWriter

Layers = tuple[tuple[int, int], ...]

DETECTORS: Mapping[str, Layers] = {
    "small": ((24, 1), (24, 1), (32, 2), (32, 1), (48, 2), (48, 1)),
    "medium": (*((24, 1),) * 3, (32, 2), *((32, 1),) * 3, (48, 2), *((48, 1),) * 2),
    "large": (*((32, 1),) * 3, (48, 2), *((48, 1),) * 4, (64, 2), *((64, 1),) * 3),
}
CLASSIFIERS: Mapping[str, Layers] = {
    "small": ((12, 2), (24, 2)),
    "medium": ((24, 2), (48, 2), (64, 1)),
    "large": ((32, 2), (64, 2), (96, 1), (96, 1)),
}
"""Channels and stride of each convolution. Finding an object takes the most of the time."""

EPOCHS: Mapping[str, Mapping[str, int]] = {
    "kind": {"small": 2, "medium": 2, "large": 2},
    "digit": {"small": 4, "medium": 4, "large": 4},
    "shape": {"small": 2, "medium": 2, "large": 2},
}
"""Few: networks of this size learn the noise of pictures that they see again and again."""

TASKS: Mapping[str, int] = {"kind": 2, "digit": DIGITS, "shape": len(SHAPES)}
"""Classes of each task."""

VARIANTS = ("small", "medium", "large")
TRAINED_ON = 12000
VALIDATED_ON = 1200
CACHED_ON, CACHES_FITTED_ON = 2400, 2400
"""Scenes that thresholds are proved on and found with; and more to fit caches on."""

PROMISE = 0.99
VARIANTS_OF_CACHES = ("Pool(4096)", "Conv(3,1)", "Conv(5,2)")
_BATCH = 64
_LEARNING_RATE = 4e-3


@dataclass(frozen=True, slots=True)
class TrainedNetworks:
    """``accuracies`` by task and size, on validation scenes; ``caches``: what came of exploring
    each detector, in words."""

    folder: Path
    accuracies: Mapping[str, Mapping[str, float]]
    caches: Mapping[str, str]

    def file(self, task: str, size: str) -> Path:
        return self.folder / f"{task}_{size}.onnx"


def trained_networks() -> TrainedNetworks:
    """From the cache, else trained now: some minutes."""
    root = Path(os.environ.get("BRISK_CACHE_DIR") or Path.home() / ".cache" / "brisk")
    parts = (
        DETECTORS,
        CLASSIFIERS,
        EPOCHS,
        TASKS,
        TRAINED_ON,
        VALIDATED_ON,
        _LEARNING_RATE,
        NOISE,
    )
    recipe = repr((parts, CACHED_ON, CACHES_FITTED_ON, PROMISE, VARIANTS_OF_CACHES))
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    folder = root / "bench-pipeline" / digest
    summary = folder / "summary.json"
    if not summary.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            found = _train_all(folder)
        finally:
            torch.set_num_threads(threads)
        partial = summary.with_suffix(".partial")
        partial.write_text(json.dumps(found))
        partial.rename(summary)
    said = json.loads(summary.read_text())
    return TrainedNetworks(folder, said["accuracies"], said["caches"])


def _train_all(folder: Path) -> dict[str, object]:
    training = make_scenes(TRAINED_ON, seed=1, held_out=False)
    validation = make_scenes(VALIDATED_ON, seed=2, held_out=True)
    accuracies: dict[str, dict[str, float]] = {}
    for task, classes in TASKS.items():
        accuracies[task] = {}
        for size in VARIANTS:
            layers = layers_of(task, size)
            network = _train(layers, classes, *_examples(task, training), EPOCHS[task][size])
            images, wanted = _examples(task, validation)
            accuracies[task][size] = float((_scores(network, images).argmax(1) == wanted).mean())
            model = _write(f"{task}_{size}", network, classes)
            (folder / f"{task}_{size}.onnx").write_bytes(model.SerializeToString())
    (folder / "join.onnx").write_bytes(_join().SerializeToString())
    caches = {size: _explore(folder / f"kind_{size}.onnx") for size in VARIANTS}
    return {"accuracies": accuracies, "caches": caches}


def layers_of(task: str, size: str) -> Layers:
    return (DETECTORS if task == "kind" else CLASSIFIERS)[size]


def _explore(model: Path) -> str:
    """Learned caches beside ``model``, as `brisk caches train` makes them; what came of it."""
    seen, proved = (
        Samples({"image": make_scenes(count, seed, held_out=held_out).images})
        for count, seed, held_out in ((CACHES_FITTED_ON, 6, False), (CACHED_ON, 5, True))
    )
    settings = ExplorationSettings(accuracy=PROMISE, points=5, variants=VARIANTS_OF_CACHES)
    with tempfile.TemporaryDirectory(prefix="brisk-pipeline-") as work:
        found = explore(model, proved, Path(work), settings, seen)
    if found.cascade is None:
        return f"none: {found.reason}"
    write_cascade(caches_file(model), found.cascade)
    gain = found.cascade.expected.base_s / found.cascade.expected.mean_s
    names = ", ".join(exit_.name for exit_ in found.cascade.exits)
    return f"{names}, expected {gain:.2f} times as fast"


def _examples(task: str, scenes: Scenes) -> tuple[np.ndarray, np.ndarray]:
    """Images and classes; of scenes of the other kind a classifier learns nothing."""
    if task == "kind":
        return scenes.images, scenes.kinds
    chosen = scenes.kinds == (0 if task == "digit" else 1)
    first = 0 if task == "digit" else DIGITS
    return scenes.images[chosen], scenes.labels[chosen] - first


def _train(
    shape: Layers, classes: int, images: np.ndarray, labels: np.ndarray, epochs: int
) -> nn.Sequential:
    """With one thread: two gain little at this size, and the weights are the same every time."""
    torch.manual_seed(7)
    layers: list[nn.Module] = []
    inputs = 1
    for channels, stride in shape:
        convolution = nn.Conv2d(inputs, channels, 3, stride=stride, padding=1)
        layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU()]
        inputs = channels
    network = nn.Sequential(
        *layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)
    )
    given, wanted = torch.from_numpy(images), torch.from_numpy(labels)
    steps = -(-len(given) // _BATCH) * epochs
    optimizer = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps)
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(len(given)), _BATCH):
            loss = nn.functional.cross_entropy(network(given[chosen]), wanted[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return network.eval()


def _scores(network: nn.Sequential, images: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return network(torch.from_numpy(images)).softmax(1).numpy()


def _write(name: str, network: nn.Sequential, classes: int) -> onnx.ModelProto:
    graph = GraphWriter(name, opset=18)
    value = graph.input("image", "float32", ("batch", 1, SIDE, SIDE))
    for layer in network:
        weights = [
            graph.weight(tensor.detach().numpy())
            for key, tensor in layer.state_dict().items()
            if key != "num_batches_tracked"
        ]
        match layer:
            case nn.Conv2d():
                strides = list(layer.stride)
                pads = [1, 1, 1, 1]
                value = graph.add("Conv", value, *weights, strides=strides, pads=pads)
            case nn.BatchNorm2d():
                value = graph.add("BatchNormalization", value, *weights, epsilon=layer.eps)
            case nn.Linear():
                value = graph.add("Gemm", value, *weights, transB=1)
            case nn.AdaptiveMaxPool2d():
                value = graph.add("GlobalMaxPool", value)
            case _:
                value = graph.add({"ReLU": "Relu"}.get(type(layer).__name__, "Flatten"), value)
    graph.output(graph.add("Softmax", value, axis=1), "scores", "float32", ("batch", classes))
    return graph.model()


def _join() -> onnx.ModelProto:
    """``label``: the most probable of all digits and shapes, given the probable kind."""
    graph = GraphWriter("join", opset=18)
    kind = graph.input("kind", "float32", ("batch", 2))
    first, second, third = graph.integers(0), graph.integers(1), graph.integers(2)
    axis = graph.integers(1)
    parts = []
    for task, start, end in (("digit", first, second), ("shape", second, third)):
        scores = graph.input(task, "float32", ("batch", TASKS[task]))
        probability = graph.add("Slice", kind, start, end, axis)
        parts.append(graph.add("Mul", scores, probability))
    label = graph.add("ArgMax", graph.add("Concat", *parts, axis=1), axis=1, keepdims=1)
    graph.output(label, "label", "int64", ("batch", 1))
    return graph.model()
