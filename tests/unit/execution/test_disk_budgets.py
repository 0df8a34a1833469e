"""A plan without measurements keeps within its budget on disk."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from brisk.execution import disk_budget
from brisk.execution.building import default_layers
from brisk.execution.cold import Scheme, start
from brisk.execution.cold_plan import cold_plan
from brisk.execution.plan import make_plan
from brisk.execution.preparation import prepare
from brisk.graph.reader import read_program
from brisk.solutions.catalogue import default_catalogue
from unit.execution.starting_models import CPU, Example, save
from unit.graph.graph_models import model, random


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    """Four convolutions of 3 x 3 taps over 28 x 28 pixels, which have Winograd's form.

    Values become smaller from layer to layer: the forms of a layer round differently, which with
    values of 6 came to 3e-5 and hid in no tolerance where a value is near 0.
    """
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    lines, last = [], "x"
    for index in range(4):
        lines.append(f"c{index} = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> ({last}, w{index})")
        lines.append(f"v{index} = Relu (c{index})")
        last = f"v{index}"
    text = "g (float[1,64,28,28] x) => (float[1,50176] y) {\n" + "\n".join(lines)
    weights = {f"w{index}": random(64, 64, 3, 3, seed=index) * 0.03 for index in range(4)}
    made = model(text + f"\ny = Flatten ({last})}}", **weights)
    return save(made, tmp_path / "entry", x=(1, 64, 28, 28))


WEIGHT_BYTES = 4 * 64 * 64 * 9 * 4


@pytest.mark.parametrize(
    ("factor", "kept"), [(100.0, 4), (4.0, 4), (3.9, 3), (2.5, 2), (1.1, 0), (0.0, 0)]
)
def test_layers_that_grow_start_raw_until_the_budget_holds(
    wide: Example, monkeypatch: pytest.MonkeyPatch, factor: float, kept: int
) -> None:
    """Each layer's kept weights are said to be four times its own, as Winograd's are.

    Whether they are Winograd's or oneDNN's: the first come with a bias of their own.
    """
    monkeypatch.setattr(
        disk_budget, "tensor_bytes", lambda tensor: WEIGHT_BYTES if tensor.numel() > 64 else 0
    )
    catalogue = default_catalogue()
    plan = make_plan(read_program(wide.path), CPU, catalogue)
    layers = [
        dataclasses.replace(layer, cached=True)
        for layer in default_layers(cold_plan(plan, catalogue), plan, 1)
        if layer.problem.operator == "Conv"
    ]
    budget = int(factor * WEIGHT_BYTES)
    chosen = disk_budget.within_budget(layers, catalogue, budget, lambda: None)
    assert sum(layer.cached for layer in chosen) == kept


@pytest.mark.parametrize("factor", [0.0, 1.5, 100.0])
def test_starts_within_any_budget_answer_alike(wide: Example, factor: float) -> None:
    made = prepare(wide.path, CPU, 2, disk_factor=factor, is_measured=False)
    started = start(wide.path, Scheme.BRISK, wide.inputs, CPU, 2, made.path)
    wide.check(started.outputs)
    started.settle()
    wide.check(started.run(wide.inputs))
    started.close()
    assert started.statistics.from_artefact
