"""A small network with hand-made caches, whose answers are known beforehand."""

from __future__ import annotations

import dataclasses
import functools
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch

from brisk.exits.base_model import BaseModel, load_graph
from brisk.exits.cascade import Cascade, Exit, Expected, Level
from brisk.exits.guarantee.calibration import CascadeCount, ExitCount
from brisk.exits.heads.exit_head import empty_head
from brisk.exits.heads.exit_model import AnswerForm, ExitEvaluation, ExitEvaluator
from brisk.exits.learning.exporting import export_head
from brisk.exits.model_graph import ModelGraph, exit_points, read_graph
from brisk.exits.scores import ScoreForm, find_scores
from brisk.exits.serving.exit_thread import ExitThread
from brisk.exits.serving.frame import ExitingFrame, Places, find_places
from brisk_bench.samples.writer import GraphWriter

CLASSES = 10
SIDE = 12


def network(layers: int = 6, channels: int = 8, tail: str = "labels") -> onnx.ModelProto:
    """``layers`` convolutions, pooled, classified; random weights.

    ``tail``: ``labels`` adds the class as a second output, ``softmax`` answers probabilities,
    ``written`` the same in elementary operators, and takes the batch's size from the input to the
    end, as some exporters do. ``mixing`` subtracts the batch's mean from each row's scores.
    """
    random = np.random.default_rng(0)
    graph = GraphWriter("small", opset=18)
    value = graph.input("image", "float32", ("batch", 3, SIDE, SIDE))
    inputs = 3
    size = ""
    if tail == "written":
        first, one = graph.integers(0), graph.integers(1)
        size = graph.add("Slice", graph.add("Shape", value), first, one)
        size = graph.add("Concat", size, graph.integers(-1), axis=0)
    for _ in range(layers):
        scale = math.sqrt(2 / (inputs * 9))
        weight = graph.weight(random.normal(0, scale, (channels, inputs, 3, 3)))
        value = graph.add("Conv", value, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        value = graph.add("Relu", value)
        inputs = channels
    value = graph.add("GlobalAveragePool", value)
    value = graph.add("Reshape", value, size) if size else graph.add("Flatten", value)
    value = graph.add("Gemm", value, graph.weight(random.normal(0, 3, (channels, CLASSES))))
    if tail == "mixing":
        mean = graph.add("ReduceMean", value, graph.integers(0), keepdims=1)
        value = graph.add("Sub", value, mean)
    if tail == "written":
        value = graph.add("Exp", value)
        value = graph.add("Div", value, graph.add("ReduceSum", value, one, keepdims=1))
    if tail == "softmax":
        graph.output(graph.add("Softmax", value, axis=1), "scores", "float32", ("batch", CLASSES))
    else:
        graph.output(value, "scores", "float32", ("batch", CLASSES))
    if tail == "labels":
        label = graph.add("ArgMax", value, axis=1, keepdims=0)
        graph.output(label, "label", "int64", ("batch",))
    return graph.model()


def images(count: int, seed: int = 1) -> np.ndarray:
    """Return random images, float32 [count, 3, SIDE, SIDE]."""
    return np.random.default_rng(seed).normal(0, 1, (count, 3, SIDE, SIDE)).astype(np.float32)


def graph_of(model: onnx.ModelProto) -> ModelGraph:
    """Return the graph of ``model``, which is written to a folder of its own, removed at the end
    of the tests."""
    folder = tempfile.TemporaryDirectory()
    _FOLDERS.append(folder)
    file = Path(folder.name) / "model.onnx"
    onnx.save(model, file)
    return read_graph(file)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def by_brightness(evaluate: ExitEvaluator) -> ExitEvaluator:
    """Return ``evaluate`` with other scores, the means of the hidden outputs: known
    beforehand."""

    def ask(hidden: np.ndarray) -> ExitEvaluation:
        scores = hidden.reshape(len(hidden), -1).mean(1)
        return ExitEvaluation(scores, np.ones(len(hidden), bool), evaluate(hidden).logits)

    return ask


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A model with exits, loaded both ways."""

    whole: BaseModel
    """The bare model."""
    cut: BaseModel
    """The same, which stops at the exits."""
    cascade: Cascade
    places: Places

    @property
    def level(self) -> Level:
        return self.cascade.levels[0]


@functools.cache
def served(
    layers: int = 6, tail: str = "labels", exits: tuple[int, ...] = (1, 3), take: int = 0
) -> Served:
    """The network with exits at the points numbered ``exits``.

    An exit's score is the mean of its hidden output; later ones have lower thresholds. The same
    object for the same arguments: who changes it names a ``take`` of its own.
    """
    graph = graph_of(network(layers, tail=tail))
    scores = find_scores(graph)
    if tail == "written":  # which samples tell
        scores = dataclasses.replace(scores, form=ScoreForm.PROBABILITIES)
    points = [exit_points(graph, scores.position)[index] for index in exits]
    whole = load_graph(graph)
    cut = load_graph(graph, taps=[point.value for point in points])
    served_exits, thresholds = [], []
    for index, point in enumerate(points):
        torch.manual_seed(index)
        hidden = hidden_at(cut, point.value, images(64))
        shape = hidden.shape[1:]
        model = export_head(empty_head("Pool(4096)", shape, CLASSES), shape)
        exit_ = Exit(point, "Pool(4096)", shape, AnswerForm(CLASSES), model, 1e-4, 1000)
        object.__setattr__(exit_, "evaluate", by_brightness(exit_.evaluate))
        share = 0.6 - 0.3 * index / len(points)
        thresholds.append(float(np.quantile(hidden.reshape(64, -1).mean(1), share)))
        served_exits.append(exit_)
    count = CascadeCount(100, tuple(ExitCount(50, 50) for _ in served_exits), 0)
    strict = Level(0.99, (math.inf,) * len(served_exits), count)
    cascade = Cascade(
        "digest",
        scores,
        tuple(served_exits),
        (Level(0.97, tuple(thresholds), count), strict),
        0.95,
        Expected(1e-3, 5e-4),
    )
    places = find_places(cut.plan, graph, cascade)
    assert places is not None
    return Served(whole, cut, cascade, places)


def start(
    model: Served,
    inputs: np.ndarray,
    exit_thread: ExitThread | None,
    requested: Sequence[str] | None = None,
    switched_off: frozenset[int] = frozenset(),
) -> ExitingFrame:
    return ExitingFrame(
        model.cut.program,
        model.cascade,
        model.places,
        model.level,
        exit_thread,
        {"image": inputs},
        requested,
        switched_off,
    )


def finish(frame: ExitingFrame) -> dict[str, np.ndarray]:
    while not frame.step():
        pass
    return frame.results()


def answered(base: BaseModel, cascade: Cascade, inputs: Mapping[str, np.ndarray]) -> ExitingFrame:
    """Return the frame of ``inputs`` that is finished, at the first level of ``cascade``."""
    places = find_places(base.plan, base.graph, cascade)
    assert places is not None
    frame = ExitingFrame(base.program, cascade, places, cascade.levels[0], None, inputs)
    finish(frame)
    return frame


def hidden_at(cut: BaseModel, value: str, inputs: np.ndarray) -> np.ndarray:
    """Return the value of the graph behind ``value`` for ``inputs``; ``cut`` has to stop there."""
    (position,) = cut.after([value])
    frame = cut.start({"image": inputs})
    while frame.position < position:
        frame.step()
    return np.array(frame.value_at(value))


def cascade() -> Cascade:
    base = served().cascade
    torch.manual_seed(3)
    exits = tuple(
        dataclasses.replace(
            exit_,
            model=export_head(empty_head(exit_.variant, exit_.shape, 10), exit_.shape),
        )
        for exit_ in base.exits
    )
    return dataclasses.replace(base, exits=exits)
