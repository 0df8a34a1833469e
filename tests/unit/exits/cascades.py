"""A small network with hand-made caches, whose answers are known beforehand."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from torch import nn

from brisk.execution.frame import Frame
from brisk.execution.loading import LoadedProgram, load_program
from brisk.exits.building import empty_look_up
from brisk.exits.calibration import CascadeCount, ExitCount
from brisk.exits.cascade import Cascade, Exit, Expected, Level
from brisk.exits.points import exit_points
from brisk.exits.scores import find_scores, slots_of
from brisk.exits.serving.frame import ExitingFrame
from brisk.exits.serving.lane import LookUpLane
from brisk.exits.serving.places import Places, find_places
from brisk.graph.reader import build_program
from brisk_client.samples.writer import GraphWriter

CLASSES = 10
SIDE = 12


def network(layers: int = 6, channels: int = 8, tail: str = "labels") -> onnx.ModelProto:
    """``layers`` convolutions, pooled, classified; random weights.

    ``tail``: ``labels`` adds the class as a second output, ``softmax`` answers probabilities.
    """
    random = np.random.default_rng(0)
    graph = GraphWriter("small", opset=18)
    value = graph.input("image", "float32", ("batch", 3, SIDE, SIDE))
    inputs = 3
    for _ in range(layers):
        scale = math.sqrt(2 / (inputs * 9))
        weight = graph.weight(random.normal(0, scale, (channels, inputs, 3, 3)))
        value = graph.add("Conv", value, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        value = graph.add("Relu", value)
        inputs = channels
    value = graph.add("Flatten", graph.add("GlobalAveragePool", value))
    value = graph.add("Gemm", value, graph.weight(random.normal(0, 3, (channels, CLASSES))))
    if tail == "softmax":
        graph.output(graph.add("Softmax", value, axis=1), "scores", "float32", ("batch", CLASSES))
    else:
        graph.output(value, "scores", "float32", ("batch", CLASSES))
    if tail == "labels":
        label = graph.add("ArgMax", value, axis=1, keepdims=0)
        graph.output(label, "label", "int64", ("batch",))
    return graph.model()


def images(count: int, seed: int = 1) -> torch.Tensor:
    return torch.tensor(
        np.random.default_rng(seed).normal(0, 1, (count, 3, SIDE, SIDE)), dtype=torch.float32
    )


class BrightnessSelector(nn.Module):
    """Hits where the first pixel of the hidden output says so: known beforehand."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, _, _ = self.inner(hidden)
        return logits, hidden.flatten(1).mean(1), hidden.new_ones(len(hidden), dtype=torch.bool)


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """``cut`` stops at the exits, ``whole`` is the bare model."""

    whole: LoadedProgram
    cut: LoadedProgram
    cascade: Cascade
    places: Places

    @property
    def level(self) -> Level:
        return self.cascade.levels[0]


@functools.cache
def served(
    layers: int = 6, tail: str = "labels", exits: tuple[int, ...] = (1, 3), take: int = 0
) -> Served:
    """The network with exits at the boundaries numbered ``exits``.

    An exit's score is the mean of its hidden output; later ones have lower thresholds. The same
    object for the same arguments: who changes it names a ``take`` of its own.
    """
    program = build_program(network(layers, tail=tail))
    scores = find_scores(program)
    points = [exit_points(program, scores.layer)[index] for index in exits]
    cpu = torch.device("cpu")
    whole = load_program(program, cpu)
    cut = load_program(program, cpu, cuts=[point.position for point in points])
    made, thresholds = [], []
    for index, point in enumerate(points):
        torch.manual_seed(index)
        shape = tuple(int(size or 0) for size in program.type_of(point.value).shape[1:])  # type: ignore[index]
        look_up = empty_look_up("Pool(4096)", shape, CLASSES)
        hidden = hidden_at(whole, point.position, point.value, images(64))
        share = torch.tensor(0.6 - 0.3 * index / len(points))
        thresholds.append(float(hidden.flatten(1).mean(1).quantile(share)))
        network_ = BrightnessSelector(look_up)
        made.append(Exit(point, "Pool(4096)", shape, network_, 1e-4, 1000))  # type: ignore[arg-type]
    count = CascadeCount(100, tuple(ExitCount(50, 50) for _ in made), 0)
    strict = Level(0.99, (math.inf,) * len(made), count)
    cascade = Cascade(
        "digest",
        scores,
        tuple(made),
        (Level(0.97, tuple(thresholds), count), strict),
        0.95,
        Expected(1e-3, 5e-4),
    )
    places = find_places(cut, cascade)
    assert places is not None
    return Served(whole, cut, cascade, places)


def start(model: Served, inputs: torch.Tensor, lane: LookUpLane | None) -> ExitingFrame:
    return ExitingFrame(
        model.cut, model.cascade, model.places, model.level, lane, {"image": inputs}
    )


def finish(frame: ExitingFrame) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        while not frame.step():
            pass
    return frame.results()  # type: ignore[return-value]


def hidden_at(
    loaded: LoadedProgram, position: int, value: str, inputs: torch.Tensor
) -> torch.Tensor:
    frame = Frame(dataclasses.replace(loaded, joined=None), {"image": inputs})
    while frame.layers_done < position:
        frame.step()
    found = frame.value_at(slots_of(loaded)[value])
    assert isinstance(found, torch.Tensor)
    return found
