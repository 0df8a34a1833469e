"""The networks of `brisk bench pipeline`: trained once, kept in the cache directory.

They are a plate's reader, which is the ResNet-50 on digits of `brisk bench exits` with its learned
caches, or one of a third of its layers; for crops of objects three tasks (which kind, which digit,
which shape), convolutional networks of different depth for the last two; and a join, which is not
trained.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from brisk.errors import InvalidModelError
from brisk.exits.base_model import load_graph
from brisk.exits.cascade_file import digest_of, write_cascade
from brisk.exits.data.samples import Samples
from brisk.exits.exploration import ExplorationSettings
from brisk.exits.files.versions import caches_file
from brisk.exits.model_graph import read_graph
from brisk_bench.exits.data import ExitCase, digits_case, kept_folder
from brisk_bench.pipeline.scenes import DIGITS, NOISE, SHAPES, SIDE, ScenePart, Scenes, make_scenes
from brisk_bench.samples.torch_layers import write_layer
from brisk_bench.samples.writer import GraphWriter

Layers = tuple[tuple[int, int], ...]

CLASSIFIERS: Mapping[str, Layers] = {
    "small": ((12, 2), (24, 2)),
    "medium": ((24, 2), (48, 2), (64, 1)),
    "large": ((32, 2), (64, 2), (96, 1), (96, 1)),
}
"""Channels and stride of each convolution, by size of the network."""

EPOCHS: Mapping[str, Mapping[str, int]] = {
    "kind": {"medium": 2},
    "digit": {"small": 16, "medium": 4, "large": 4},
    "shape": {"small": 4, "medium": 2, "large": 2},
}
"""Epochs of each size that is trained, by task. Few: large networks learn the noise of pictures
that they see again."""

TASKS: Mapping[str, int] = {"kind": 2, "digit": DIGITS, "shape": len(SHAPES)}
"""The number of classes of each task."""

PLATE = "plate"
TRAINED_ON = 12000
VALIDATED_ON = 1200
POINTS = 4
PROMISE = 0.97
_BATCH = 64
_LEARNING_RATE = 4e-3


@dataclass(frozen=True, slots=True)
class TrainedNetworks:
    """The networks in ``folder``, with what is known of them.

    ``accuracies``: by task and size, on validation scenes; of the reader, on the data of its
      caches.
    ``plates``: inputs and labels that its caches have not seen.
    ``caches``: what came of exploring, in words.
    """

    folder: Path
    accuracies: Mapping[str, Mapping[str, float]]
    plates: Samples
    caches: str


def trained_networks() -> TrainedNetworks:
    """Return the networks from the cache, else train them now, which takes some minutes."""
    parts = [part.value for part in ScenePart]
    recipe = repr(
        (CLASSIFIERS, EPOCHS, TASKS, TRAINED_ON, VALIDATED_ON, _LEARNING_RATE, NOISE, parts)
    )
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    folder = kept_folder("bench-pipeline") / digest
    summary = folder / "summary.json"
    if not summary.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            results = _train_all(folder)
        finally:
            torch.set_num_threads(threads)
        partial = summary.with_suffix(".partial")
        partial.write_text(json.dumps({"accuracies": results}))
        partial.rename(summary)
    case = digits_case(quick=True)
    plates, note = _readers(case, folder)
    accuracies = {PLATE: plates, **json.loads(summary.read_text())["accuracies"]}
    return TrainedNetworks(folder, accuracies, case.evaluation, note)


def _train_all(folder: Path) -> dict[str, dict[str, float]]:
    """Train and save all networks but the readers; return accuracies by task and size."""
    training = make_scenes(TRAINED_ON, seed=1, part=ScenePart.TRAINED)
    validation = make_scenes(VALIDATED_ON, seed=2, part=ScenePart.VALIDATED)
    accuracies: dict[str, dict[str, float]] = {}
    for task, classes in TASKS.items():
        images, labels = _examples(task, validation)
        accuracies[task] = {}
        for size, epochs in EPOCHS[task].items():
            network = train_network(CLASSIFIERS[size], classes, *_examples(task, training), epochs)
            file = folder / f"{task}_{size}.onnx"
            onnx.save(network_as_onnx(f"{task}_{size}", network, classes), file)
            accuracies[task][size] = _share_right(file, Samples({"image": images}, labels))
    onnx.save(joining_network(), folder / "join.onnx")
    return accuracies


def _readers(case: ExitCase, folder: Path) -> tuple[dict[str, float], str]:
    """Put both readers of plates into ``folder``, the large one with its caches.

    This does what `brisk caches train` would do; an exploration of `brisk bench exits` is
    continued. Returns the readers' accuracies, and what came of exploring in words.
    """
    assert case.smaller is not None
    accuracies = {}
    for size, file in (("small", case.smaller()), ("large", case.model)):
        shutil.copy(file, folder / f"{PLATE}_{size}.onnx")
        accuracies[size] = _share_right(file, case.training)
    settings = ExplorationSettings(accuracy=PROMISE, points=POINTS, variants=case.variants)
    exploration = case.explore(settings)
    if exploration.cascade is None:
        raise InvalidModelError(f"the reader of plates got no caches: {exploration.reason}")
    model = folder / f"{PLATE}_large.onnx"
    write_cascade(
        caches_file(model), dataclasses.replace(exploration.cascade, model_digest=digest_of(model))
    )
    gain = exploration.cascade.expected.base_s / exploration.cascade.expected.mean_s
    names = ", ".join(exit_.name for exit_ in exploration.cascade.exits)
    return accuracies, f"{names}: expected {gain:.2f} times as fast"


def _share_right(model: Path, samples: Samples) -> float:
    base = load_graph(read_graph(model))
    (name,) = samples.inputs
    images = samples.inputs[name]
    parts = [images[start : start + _BATCH] for start in range(0, len(images), _BATCH)]
    answers = [next(iter(base.run({name: part}).values())) for part in parts]
    classes = np.concatenate([answer.argmax(1) for answer in answers])
    return float((classes == samples.labels).mean())


def _examples(task: str, scenes: Scenes) -> tuple[np.ndarray, np.ndarray]:
    """Return images and classes for a task.

    A classifier gets only scenes of its own kind; from others it learns nothing.
    """
    if task == "kind":
        return scenes.images, scenes.kinds
    chosen = scenes.kinds == (0 if task == "digit" else 1)
    first = 0 if task == "digit" else DIGITS
    return scenes.images[chosen], scenes.labels[chosen] - first


def train_network(
    shape: Layers, classes: int, images: np.ndarray, labels: np.ndarray, epochs: int
) -> nn.Sequential:
    """Train a classifier. The caller sets torch to one thread.

    Two threads gain little at this size, and with one the weights are the same every time.
    """
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
    samples, targets = torch.from_numpy(images), torch.from_numpy(labels)
    steps = -(-len(samples) // _BATCH) * epochs
    optimizer = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps)
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(len(samples)), _BATCH):
            loss = nn.functional.cross_entropy(network(samples[chosen]), targets[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return network.eval()


def network_as_onnx(name: str, network: nn.Sequential, classes: int) -> onnx.ModelProto:
    graph = GraphWriter(name, opset=18)
    value = graph.input("image", "float32", ("batch", 1, SIDE, SIDE))
    for layer in network:
        if isinstance(layer, nn.AdaptiveMaxPool2d):
            value = graph.add("GlobalMaxPool", value)
        else:
            value = write_layer(graph, layer, value)
    graph.output(graph.add("Softmax", value, axis=1), "scores", "float32", ("batch", classes))
    return graph.model()


def joining_network() -> onnx.ModelProto:
    """Return the join. ``label``: the most probable of all digits and shapes, given the probable
    kind; ``number``: the plate's."""
    graph = GraphWriter("join", opset=18)
    plate = graph.input(PLATE, "float32", ("plates", DIGITS))
    graph.output(graph.add("ArgMax", plate, axis=1, keepdims=1), "number", "int64", ("plates", 1))
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
