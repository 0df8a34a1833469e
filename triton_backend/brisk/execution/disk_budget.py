"""The default plan within what an artefact may take on disk.

A plan without measurements keeps all transformed weights. Winograd's forms are 1.8 and 4 times as
large as the weights they are made of, so a model of such layers could take any multiple of itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

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
    joined: Collection[int] = (),
) -> list[ColdLayer]:
    """``layers``; those that grow most start from raw weights until all take ``disk_bytes``.

    ``joined``: numbers of layers that are part of kept runs, which are left as they are and take
    nothing.
    Such a layer starts as it would without an artefact, and gets its warm solution later. All
    raw: no less is possible, whatever the budget.
    """
    alone = [index for index in range(len(layers)) if index not in joined]
    kept = {index: _kept_bytes(layers[index], breathe) for index in alone}
    growth = {
        index: kept[index] - weight_bytes(layers[index].problem) if layers[index].cached else 0
        for index in alone
    }
    chosen, total = list(layers), sum(kept.values())
    for index in sorted(alone, key=growth.__getitem__, reverse=True):
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
