"""The slowest requests: look-ups in the model's thread against a lane of their own (GATI, 7.1.1).

A request that every cache misses pays for all look-ups where they are synchronous. Networks and
caches are untrained here, which costs the same time, and every threshold is out of reach.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from brisk.exits.cascade import Cascade, Exit, Expected, Level
from brisk.exits.data.samples import Samples
from brisk.exits.guarantee.calibration import CascadeCount, ExitCount
from brisk.exits.heads.lookup import empty_look_up
from brisk.exits.learning.exporting import export_look_up
from brisk.exits.model_graph import exit_points, read_graph, spread
from brisk.exits.scores import find_scores
from brisk_client.benchmarks.exits.runs import BARE, ExitBench, Version
from brisk_client.samples.bottleneck import BottleneckRecipe, untrained_bottleneck

EXITS = 3
SIDE = 32
RUNS = {1: 150, 8: 40}
"""Of each batch size."""

NEVER = 2.0
"""No score reaches it."""


@dataclass(frozen=True, slots=True)
class TailCase:
    """A ResNet-50 of ``width`` channels in its stem (64: the original's) with such caches."""

    width: int
    variant: str


CASES = (TailCase(32, "Pool(4096)"), TailCase(64, "Conv(3,1)"), TailCase(64, "FC(1024)"))


def tail_rows(cases: tuple[TailCase, ...] = CASES) -> Iterator[dict[str, Any]]:
    """A row for each case, batch and way of looking up."""
    with TemporaryDirectory() as folder:
        for case in cases:
            yield from _rows(case, Path(folder))


def _rows(case: TailCase, folder: Path) -> Iterator[dict[str, Any]]:
    model = folder / f"{case.width}.onnx"
    if not model.exists():
        recipe = BottleneckRecipe(width=case.width, epochs=0)
        onnx.save(untrained_bottleneck("resnet50", recipe, (SIDE, SIDE)), model)
    cascade = _missing_cascade(model, case.variant)
    images = np.random.default_rng(0).random((max(RUNS), 1, SIDE, SIDE)).astype(np.float32)
    versions = {"synchronous": Version(cascade, True), "asynchronous": Version(cascade, False)}
    with contextlib.closing(ExitBench(model)) as bench:
        for batch, runs in RUNS.items():
            order = np.arange(batch * runs) % len(images)
            sides = bench.measure(versions, Samples({"image": images[order]}), batch, quick=False)
            for name, side in sides.items():
                yield {
                    "model": f"resnet50 of width {case.width}, {EXITS} {case.variant} that miss",
                    "side": BARE if name == BARE else f"look-ups {name}",
                    "batch": batch,
                    **side.speed_columns(sides[BARE]),
                }


def _missing_cascade(model: Path, variant: str) -> Cascade:
    graph = read_graph(model)
    scores = find_scores(graph)
    points = exit_points(graph, scores.position)
    exits = []
    for number in spread(points, [point.position for point in points], EXITS):
        point = points[number]
        shape = tuple(int(size or 0) for size in graph.types[point.value].shape[1:])  # type: ignore[index]
        network = empty_look_up(variant, shape, scores.classes)
        made = export_look_up(network, shape, variant)
        exits.append(Exit(point, variant, shape, scores.classes, made, 0.0, 0))
    count = CascadeCount(1, tuple(ExitCount(1, 1) for _ in exits), 0)
    levels = (Level(0.97, (NEVER,) * len(exits), count),)
    return Cascade("", scores, tuple(exits), levels, 0.95, Expected(1.0, 1.0))
