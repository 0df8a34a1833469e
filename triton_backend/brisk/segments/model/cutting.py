"""The cutting of a model's graph: at boundaries that are cheap to cross, so that no segment is
long.

A segment is loaded, run and interrupted as a whole. Times are predicted from the multiplications
of convolutions and products. A cut costs a call of ONNX Runtime and moving the live tensors;
images move once out of the kernels' own layout and back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import onnx
from onnx import GraphProto, ModelProto, TensorProto, TypeProto

from brisk.graph.files.element_types import PACKED
from brisk.segments.model.graph_names import (
    NodeNames,
    calls_of,
    is_in_order,
    live_values,
    names_of,
    single_values,
    value_types,
)
from brisk.segments.model.node_times import (
    CONVOLUTIONS,
    IMAGE_RANK,
    count_of,
    node_times_ns,
    sizes_of,
    with_image_sizes,
)

LONGEST_SEGMENT_NS: float = 10_000_000
"""The longest predicted time of a segment on one thread: what a more urgent request waits for
within a worker."""

MOST_LOSS = 0.02
"""The share of the model's time that all its cuts may cost together."""

CROSSING_BYTES_PER_NS = 2.0
"""The speed at which a live image of a convolutional model leaves its kernels' own blocked layout,
and comes back into it."""

PLAIN_CROSSING_BYTES_PER_NS = 32.0
"""The speed at which other tensors, which stay as they are, cross a boundary: they miss a memory
that is still at hand."""

LEFT_LAYOUT_CROSSINGS = 4
"""The number of crossings of an image that it costs if something other than convolutions and pools
reads it: it stays in the plain layout until the next one that nothing else reads, and each sum on
the way takes it out and in again.
"""

CALL_NS = 30_000
"""The time of a call of one more session."""

MOST_CROSSING = 1000
"""The most tensors that cross a boundary: a graph of very many live ones is not added up at each
node."""

SMALL_MODEL_BYTES = 1 << 20
"""The file size below which a model of at most SMALL_MODEL_NODES nodes is one segment, without a
look at it."""
SMALL_MODEL_NODES = 64

_FUSED_BEHIND = frozenset(
    {
        *("Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "PRelu", "Elu", "Selu", "Gelu", "Erf"),
        *("HardSigmoid", "HardSwish", "Softplus", "Softmax", "BatchNormalization", "Pad"),
        *("Add", "Sub", "Mul", "Div", "Sqrt", "Pow", "ReduceMean", "Cast"),
        *("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"),
        *("QuantizeLinear", "DequantizeLinear"),
        *("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"),
    }
)
"""Operators that ONNX Runtime fuses with the node before them: no cut stands between the two."""

_QUANTISES, _SCALES_BACK = "QuantizeLinear", "DequantizeLinear"
"""The operators of quantised models. ONNX Runtime computes on integers what stands between the
second and the first, wherever they stand: neither what the first reads nor what the second makes
crosses a boundary. What is quantised may: a cut stands between the first and the second. A node
whose body or function has one of them counts as both.
"""

_READ_BLOCKED = frozenset(
    {*CONVOLUTIONS, "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
)
"""Operators that bring an image that they read into the blocked layout."""

_NO_TENSORS = frozenset(
    {
        *("SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceMap"),
        *("SplitToSequence", "Optional", "OptionalGetElement", "If", "Loop", "Scan", "ZipMap"),
    }
)
"""Operators whose outputs may be something else than tensors."""


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """Nodes ``start`` to ``stop`` (exclusive), predicted to take ``predicted_ns``."""

    start: int
    stop: int
    predicted_ns: float


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place to cut a graph."""

    position: int
    """The index of the node that follows."""
    cost_ns: float
    """The time of crossing it."""


def cut_points(
    model: ModelProto,
    size_bytes: int,
    longest_ns: float | None = None,
    taps: Collection[str] = (),
    names: NodeNames | None = None,
) -> tuple[list[NodeSpan], ModelProto]:
    """Return the spans of the model's nodes, in order, and the model with the types that are
    known.

    ``size_bytes``: of the model's file. ``longest_ns``: None for LONGEST_SEGMENT_NS; 0 cuts at
    every boundary, whatever it costs. ``taps``: names of values that are read at a boundary, so
    the model is cut after each, whatever it costs; unknown ones are ignored. ``names``: of the
    model's graph, if they are known. There is one span if the graph is small and has no taps, if
    ``is_in_order`` forbids more, or if no boundary is cheap enough.
    """
    longest_ns = LONGEST_SEGMENT_NS if longest_ns is None else longest_ns
    count = len(model.graph.node)
    whole = [NodeSpan(0, count, 0.0)]
    is_small = size_bytes < SMALL_MODEL_BYTES and count <= SMALL_MODEL_NODES
    if is_small and longest_ns > 0 and not taps:
        return whole, model
    names = names or names_of(model.graph)
    if not is_in_order(model.graph, names):
        return whole, model
    assumed = None
    if longest_ns > 0 and (assumed := with_image_sizes(model)) is not None:
        types = value_types(assumed.graph)
        times_ns = node_times_ns(model.graph, names, types)
        if sum(times_ns) <= longest_ns and not taps:
            return [NodeSpan(0, count, sum(times_ns))], model
    try:
        typed = onnx.shape_inference.infer_shapes(model, data_prop=False)
    except Exception:  # noqa: BLE001  # inference is a help; the model is judged when it is loaded
        return whole, model
    if assumed is None:
        types = value_types(typed.graph)
        if longest_ns <= 0:
            ends = [*(each.position for each in boundaries_of(typed, names, types)), count]
            return [NodeSpan(start, stop, 0.0) for start, stop in pairwise([0, *ends])], typed
        times_ns = node_times_ns(model.graph, names, types)
    total_ns = sum(times_ns)
    forced = _tapped(typed.graph, types, taps)
    spans = [NodeSpan(0, count, total_ns)]
    if total_ns > longest_ns:
        boundaries = list(boundaries_of(typed, names, types))
        spans = _spans(times_ns, boundaries, longest_ns, MOST_LOSS * total_ns)
    return (_with_forced(spans, times_ns, forced, longest_ns) if forced else spans), typed


def is_fused_with_next(graph: GraphProto, position: int) -> bool:
    """Whether ONNX Runtime fuses the nodes before and after this boundary."""
    if not 0 < position < len(graph.node):
        return False
    before, behind = graph.node[position - 1].op_type, graph.node[position].op_type
    return behind in _FUSED_BEHIND or before == _SCALES_BACK


def _tapped(
    graph: GraphProto, types: Mapping[str, TypeProto], taps: Collection[str]
) -> frozenset[int]:
    """Return the boundaries at which ``taps`` are live: where a tap is live alone, if there is
    one, else right after the node that makes it."""
    if not taps:
        return frozenset()
    single, live = single_values(graph), live_values(graph)
    makers = {name: position for position, node in enumerate(graph.node) for name in node.output}
    positions = set()
    for name in taps:
        if name not in makers:
            continue
        position = single.get(name, makers[name] + 1)
        if 0 < position < len(graph.node) and all(
            _may_cross(types.get(each)) for each in live[position]
        ):
            positions.add(position)
    return frozenset(positions)


def _with_forced(
    spans: Sequence[NodeSpan], times_ns: Sequence[float], forced: frozenset[int], longest_ns: float
) -> list[NodeSpan]:
    """Return the spans with cuts at ``forced``, too, without ordinary cuts that this makes
    needless."""
    elapsed = list(accumulate(times_ns, initial=0.0))
    ends = sorted({*(span.stop for span in spans), *forced})
    cuts: list[int] = [0]
    for place, end in enumerate(ends):
        is_last = place == len(ends) - 1
        if end in forced or is_last or elapsed[ends[place + 1]] - elapsed[cuts[-1]] > longest_ns:
            cuts.append(end)
    return [
        NodeSpan(start, stop, elapsed[stop] - elapsed[start]) for start, stop in pairwise(cuts)
    ]


def _spans(
    times_ns: Sequence[float], boundaries: Sequence[Boundary], longest_ns: float, budget_ns: float
) -> list[NodeSpan]:
    """Return the spans between evenly placed cuts; segments get longer until all cuts together
    cost at most ``budget_ns``."""
    elapsed = list(accumulate(times_ns, initial=0.0))
    target_ns = longest_ns
    while target_ns < elapsed[-1]:
        cuts = _cheapest(elapsed, boundaries, target_ns)
        if sum(cut.cost_ns for cut in cuts) <= budget_ns:
            ends = [*(cut.position for cut in cuts), len(times_ns)]
            return [
                NodeSpan(start, stop, elapsed[stop] - elapsed[start])
                for start, stop in pairwise([0, *ends])
            ]
        target_ns *= 1.5
    return [NodeSpan(0, len(times_ns), elapsed[-1])]


def _cheapest(
    elapsed: Sequence[float], boundaries: Sequence[Boundary], target_ns: float
) -> list[Boundary]:
    """Return boundaries, chosen from the front: each segment ends at the cheapest one of its
    second half, or at the next one after that."""
    cuts: list[Boundary] = []
    start = place = 0
    while elapsed[-1] - elapsed[start] > target_ns:
        window: list[Boundary] = []
        place = bisect_right(boundaries, start, place, key=lambda each: each.position)
        for number in range(place, len(boundaries)):
            each = boundaries[number]
            apart_ns = elapsed[each.position] - elapsed[start]
            if apart_ns > target_ns:
                window = window or [each]
                break
            if apart_ns >= target_ns / 2:
                window.append(each)
        if not window:
            break
        cuts.append(min(window, key=lambda each: (each.cost_ns, -each.position)))
        start = cuts[-1].position
    return cuts


def boundaries_of(
    model: ModelProto, names: NodeNames, types: Mapping[str, TypeProto]
) -> Iterator[Boundary]:
    """Yield, in order, the boundaries of the graph that only tensors of known types cross.

    A value that follows from weights alone crosses none: ONNX Runtime computes it once, when it
    loads the segment that reads it.
    """
    live = {
        info.name: None
        for info in model.graph.input
        if info.name not in names.constants and info.name in names.last_use
    }
    dying: dict[int, list[str]] = {}
    for name, last in names.last_use.items():
        dying.setdefault(last, []).append(name)
    new = list(live)
    blocking: set[str] = set()
    crossing_ns: dict[str, float] = {}
    producers: dict[str, str] = {}
    is_convolutional = not CONVOLUTIONS.isdisjoint(names.operators)
    last_plain = _last_plain_uses(names) if is_convolutional else {}
    calls = calls_of(model, (_QUANTISES, _SCALES_BACK))
    quantised = {
        name
        for position, reads in enumerate(names.reads)
        if names.operators[position] == _QUANTISES or position in calls
        for name in (reads if position in calls else reads[:1])
    }
    folded = set(names.constants)
    for position, operator in enumerate(names.operators):
        reads = names.reads[position]
        reads_quantised = operator == _SCALES_BACK and any(
            producers.get(name) == _QUANTISES for name in reads
        )
        if position and (reads_quantised or operator not in _FUSED_BEHIND):
            for name in (name for name in new if name in live):
                if (
                    producers.get(name) not in _NO_TENSORS
                    and producers.get(name) != _SCALES_BACK
                    and (name not in producers or name not in quantised)
                    and _may_cross(types.get(name))
                    and name not in folded
                ):
                    crossing_ns[name] = _crossing_ns(types[name], is_convolutional)
                else:
                    blocking.add(name)
            new.clear()
            if not blocking and len(live) <= MOST_CROSSING:
                cost_ns = sum(
                    crossing_ns[name]
                    * (LEFT_LAYOUT_CROSSINGS if last_plain.get(name, -1) >= position else 1)
                    for name in live
                )
                yield Boundary(position, CALL_NS + cost_ns)
        if reads and folded.issuperset(reads):
            folded.update(names.makes[position])
        for name in names.makes[position]:
            if name in names.last_use:
                live[name] = None
                new.append(name)
                producers[name] = _SCALES_BACK if position in calls else operator
        for name in dying.get(position, ()):
            live.pop(name, None)
            blocking.discard(name)


def _last_plain_uses(names: NodeNames) -> dict[str, int]:
    """Return the last node that reads each value in the plain layout, by the value's name."""
    return {
        name: position
        for position, operator in enumerate(names.operators)
        if operator not in _READ_BLOCKED
        for name in names.reads[position]
    }


_STAYS_INSIDE = PACKED | {TensorProto.UNDEFINED, TensorProto.FLOAT16, TensorProto.BFLOAT16}
"""Types of tensors that cross no boundary: a CPU computes half precision in float32, and a
boundary would round, and overflow, where one session does not. Where a byte holds several elements
there is no array, by which answers are compared and some rows go on alone.
"""


def _may_cross(kind: TypeProto | None) -> bool:
    return (
        kind is not None
        and kind.HasField("tensor_type")
        and kind.tensor_type.elem_type not in _STAYS_INSIDE
    )


def _crossing_ns(kind: TypeProto, is_convolutional: bool) -> float:
    is_blocked = is_convolutional and len(sizes_of(kind)) == IMAGE_RANK
    bytes_per_ns = CROSSING_BYTES_PER_NS if is_blocked else PLAIN_CROSSING_BYTES_PER_NS
    return 2 * 4 * count_of(sizes_of(kind)) / bytes_per_ns
