"""One more cut for a model whose bytes arrive, so that little is left to compute after the last.

A segment is run when all of its bytes are here. While those of the last segment arrive, the one
before it can be run. So a first answer is later than the last byte by the time of the last
segment, and by what is left then of the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import onnx

from brisk.segments.model.cutting import (
    boundaries_of,
    cut_points,
)
from brisk.segments.model.graph_names import is_in_order, names_of, single_values, value_types
from brisk.segments.model.model_file import ModelFile
from brisk.segments.model.node_times import node_times_ns

MOST_COST = 0.01
"""The share of the model's time that the cut may cost every run."""

LEAST_GAIN = 0.05
"""The share of the model's time by which a first answer must be sooner."""

BYTES_PER_NS = 0.125
"""The speed at which bytes are assumed to come: a link of 1 Gbit/s."""


def late_cut(file: ModelFile) -> str:
    """Return the value after which the model is to be cut; empty: that gains too little.

    The value is the only live one there, apart from shapes. Times are predicted, as in
    ``cut_points``. ``file``: normalized, with all its weights.
    """
    model, graph = file.proto, file.proto.graph
    names = names_of(graph)
    if file.unread is not None or not is_in_order(graph, names):
        return ""
    spans, typed = cut_points(model, sum(map(len, file.files.values())), names=names)
    try:
        typed = onnx.shape_inference.infer_shapes(typed, data_prop=False)
    except Exception:  # noqa: BLE001  # inference is a help, as there
        return ""
    types = value_types(typed.graph)
    elapsed = list(accumulate(node_times_ns(graph, names, types), initial=0.0))
    come = list(accumulate(_weight_bytes(file), initial=0.0))
    last = spans[-1].start
    costs = {each.position: each.cost_ns for each in boundaries_of(typed, names, types)}
    best, least_ns = "", _late_ns(elapsed, come, spans[-2].start if len(spans) > 1 else 0, last)
    least_ns -= LEAST_GAIN * elapsed[-1]
    for value, position in single_values(graph).items():
        cost_ns = costs.get(position)
        if cost_ns is None or position <= last or cost_ns > MOST_COST * elapsed[-1]:
            continue
        late_ns = _late_ns(elapsed, come, last, position)
        if late_ns < least_ns:
            best, least_ns = value, late_ns
    return best


def _late_ns(elapsed: Sequence[float], come: Sequence[float], before: int, cut: int) -> float:
    """Return the time from the last byte to a first answer if the last two segments begin at nodes
    ``before`` and ``cut``. ``elapsed``, ``come``: time and bytes of all nodes before each."""
    arriving_ns = (come[-1] - come[cut]) / BYTES_PER_NS
    left_ns = max(elapsed[cut] - elapsed[before] - arriving_ns, 0.0) if cut else 0.0
    return left_ns + elapsed[-1] - elapsed[cut]


def _weight_bytes(file: ModelFile) -> list[float]:
    """Return for each node the bytes of the weights that no node before it reads."""
    seen: set[str] = set()
    sizes = []
    for node in file.proto.graph.node:
        new = {name for name in node.input if name in file.weights} - seen
        seen |= new
        sizes.append(float(sum(file.weights[name].data.nbytes for name in new)))
    return sizes
