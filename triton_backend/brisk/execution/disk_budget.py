"""The default plan within what an artefact may take on disk.

A plan without measurements keeps all transformed weights. Winograd's forms are 1.8 and 4 times as
large as the weights they are made of, so a model of such layers could take any multiple of itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from brisk.execution.building import ColdLayer
from brisk.execution.cold_plan import raw_layer
from brisk.execution.kept import can_keep, tensor_bytes
from brisk.execution.machine_costs import weight_bytes
from brisk.execution.plan import LayerPlan
from brisk.solutions.catalogue import Catalogue


def within_budget(
    layers: Sequence[ColdLayer],
    catalogue: Catalogue,
    disk_bytes: int,
    breathe: Callable[[], None],
) -> list[ColdLayer]:
    """``layers``; those that grow most start from raw weights until all take ``disk_bytes``.

    Such a layer starts as it would without an artefact, and gets its warm solution later. All
    raw: no less is possible, whatever the budget.
    """
    raw = [weight_bytes(layer.problem) for layer in layers]
    kept = [_kept_bytes(layer, breathe) for layer in layers]
    growth = [
        size - plain if layer.cached else 0
        for size, plain, layer in zip(kept, raw, layers, strict=True)
    ]
    chosen, total = list(layers), sum(kept)
    for index in sorted(range(len(chosen)), key=growth.__getitem__, reverse=True):
        if total <= disk_bytes or growth[index] <= 0:
            break
        layer = chosen[index]
        plain = raw_layer(LayerPlan(layer.problem, layer.warm, ()), catalogue)
        chosen[index] = dataclasses.replace(layer, solution=plain.solution, cached=False)
        total -= growth[index]
    return chosen


def _kept_bytes(layer: ColdLayer, breathe: Callable[[], None]) -> int:
    """Of the weights that the artefact would hold for the layer's start."""
    if not layer.cached:
        return weight_bytes(layer.problem)
    breathe()
    tensors = layer.solution.transform(layer.problem).values()
    if not all(map(can_keep, tensors)):
        return weight_bytes(layer.problem)
    return sum(map(tensor_bytes, tensors))
