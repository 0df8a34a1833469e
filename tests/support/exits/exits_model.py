"""A model of one exit whose answers are known beforehand, and how to ask for them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch

from brisk.exits.base_model import load_graph
from brisk.exits.cascade import SMALLER, Cascade, Exit, Expected, Level
from brisk.exits.cascade_file import digest_of, write_cascade
from brisk.exits.files.versions import caches_file
from brisk.exits.guarantee.calibration import CascadeCount, ExitCount
from brisk.exits.heads.exit_head import ExitHead, empty_head
from brisk.exits.heads.exit_model import AnswerForm, Judge
from brisk.exits.learning.approximate import as_approximate, until_scores
from brisk.exits.learning.exporting import export_head
from brisk.exits.model_graph import ExitPoint, exit_points, read_graph
from brisk.exits.scores import find_scores
from brisk.protocol.records import TensorForm
from brisk.stub.runtime_client.client import RuntimeClient
from support.exits.cascades import CLASSES, SIDE, hidden_at, images, network
from support.runtime.runtime_process import Answer

LAYERS, CHANNELS = 30, 32
MILLION = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model of one exit."""

    file: Path
    cascade: Cascade
    easy: np.ndarray
    """Images that the exit answers, [8, 3, 12, 12]."""
    hard: np.ndarray
    """Images that it does not answer, [8, 3, 12, 12]."""

    @property
    def name(self) -> str:
        """The name of the exit."""
        return self.cascade.exits[0].name


def make_model(file: Path) -> Model:
    """Write the model to ``file`` and its caches beside it; return both."""
    onnx.save(network(LAYERS, CHANNELS), file)
    graph = read_graph(file)
    scores = find_scores(graph)
    point = exit_points(graph, scores.position)[1]
    torch.manual_seed(7)
    head = empty_head("Pool(4096)", (CHANNELS, SIDE, SIDE), CLASSES)
    base = load_graph(graph, taps=[point.value])
    inputs = images(128, seed=3)
    classes = base.run({"image": inputs})["scores"].argmax(1)
    favourite = int(np.bincount(classes).argmax())
    inputs = inputs[classes == favourite][:64]
    assert len(inputs) == 64
    hidden = torch.tensor(hidden_at(base, point.value, inputs))
    _agree(head, hidden, favourite)
    exit_scores = head(hidden)[1].numpy()
    model = export_head(head, (CHANNELS, SIDE, SIDE), "Pool(4096)")
    order = exit_scores.argsort()
    count = CascadeCount(100, (ExitCount(50, 50),), 0)
    cascade = Cascade(
        digest_of(file),
        scores,
        (
            Exit(
                point, "Pool(4096)", (CHANNELS, SIDE, SIDE), AnswerForm(CLASSES), model, 1e-4, 1000
            ),
        ),
        (
            Level(0.97, (float(exit_scores[order[30:34]].mean()),), count),
            Level(0.99, (math.inf,), count),
        ),
        0.95,
        Expected(1e-3, 5e-4),
        synchronous=True,
    )
    write_cascade(caches_file(file), cascade)
    return Model(file, cascade, inputs[order[-8:]], inputs[order[:8]])


def _agree(head: ExitHead, hidden: torch.Tensor, favourite: int) -> None:
    """Let it always answer ``favourite``, but no surer than need be: else the audit ends it."""
    logits = head(hidden)[0]
    behind = float((logits.amax(1) - logits[:, favourite]).max())
    *_, last = (each for each in head.predictor.modules() if isinstance(each, torch.nn.Linear))
    last.bias[favourite] += behind + 0.01


def ask(
    connection: RuntimeClient,
    inputs: np.ndarray,
    job_class: str = "normal",
    ppm: int | None = None,
) -> Answer:
    value = np.ascontiguousarray(inputs)
    staged = connection.stage((TensorForm("image", "FP32", value.shape),), [value.nbytes])
    connection.memory(staged.regions[0])[:] = value.tobytes()
    answer = Answer()
    connection.submit(staged, ["scores"], job_class, None, answer, agreement_ppm=ppm)
    return answer


def taken(answer: Answer) -> str:
    answer.output()
    assert answer.result is not None
    return answer.result.form.exits


def with_smaller(model: Model) -> Cascade:
    """Return a cascade of the model itself as its smaller one."""
    graph, scores = read_graph(model.file), model.cascade.scores
    names = {each.name: each.name for each in graph.needed}
    copy = as_approximate(SMALLER, until_scores(graph, scores), graph, scores, names)
    exit_ = Exit(
        point=ExitPoint(0, "image"),
        variant=SMALLER,
        shape=copy.shape,
        form=copy.form,
        model=copy.exit_model(0.0),
        evaluation_s=1e-4,
        memory_bytes=1000,
        judge=Judge.MARGIN,
    )
    level = dataclasses.replace(model.cascade.levels[0], thresholds=(0.0,))
    return dataclasses.replace(model.cascade, exits=(exit_,), levels=(level,), synchronous=True)
