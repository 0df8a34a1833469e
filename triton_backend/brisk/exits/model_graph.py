"""A model's graph, from which segments are cut: its types, its rows, and its exit points.

An exit may stand at a value if nothing else is live there (compare GATI, section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto

from brisk.errors import InvalidModelError
from brisk.graph.files.proto import from_type_proto, is_unnamed
from brisk.graph.program import ContainerKind, Dimension, ValueType, Variable
from brisk.segments.model.cutting import is_fused_with_next
from brisk.segments.model.extraction import normalise
from brisk.segments.model.graph_names import constants_of, is_in_order, single_values, types_of
from brisk.segments.model.model_file import ModelFile, read_model_file
from brisk.segments.model.node_times import predicted_times_ns

_BATCH = "brisk_batch"


@dataclass(frozen=True, slots=True, eq=False)
class ModelGraph:
    """A model's graph with its types."""

    path: Path
    model: ModelProto
    """The model, normalised, its types inferred, its large weights in ``file``."""
    file: ModelFile
    types: Mapping[str, ValueType]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    batch: Dimension
    """The first dimension of every input; None if they differ, or one has none."""

    @property
    def name(self) -> str:
        """The name that people know: of the entry that the file is a version of, else the file's.

        The graph's own is often its exporter's, such as ``main_graph``.
        """
        version = self.path.absolute().parent
        return version.parent.name if version.name.isdecimal() else self.path.name

    @property
    def file_bytes(self) -> int:
        """The size of the model's files, those of external data included."""
        return sum(len(data) for data in self.file.files.values())

    @property
    def graph(self) -> GraphProto:
        return self.model.graph

    @property
    def needed(self) -> tuple[Variable, ...]:
        """The inputs without a default: old files name all their weights among the inputs."""
        return tuple(each for each in self.inputs if not each.optional)

    @property
    def is_single(self) -> bool:
        """Whether a batch is one row, and never more."""
        return self.batch == 1

    @property
    def all_have_rows(self) -> bool:
        """Whether inputs are needed, and each has the batch as its first dimension."""
        return bool(self.needed) and all(self.has_rows(each.name) for each in self.needed)

    def has_rows(self, value: str) -> bool:
        """Whether ``value`` is a tensor with the batch as its first dimension."""
        return self.batch is not None and self._first(value) == (self.batch,)

    def may_have_rows(self, value: str) -> bool:
        """Whether ``value`` may have rows: also if its first dimension is unknown, or has a name
        that no input has. Then only a run of the model shows it."""
        if self.batch is None or isinstance(self.batch, int):
            return self.has_rows(value)
        (first,) = self._first(value) or (0,)
        names = {size for each in self.needed for size in (each.type.shape or ())[1:]}
        return (
            first == self.batch or first is None or (isinstance(first, str) and first not in names)
        )

    def _first(self, value: str) -> tuple[Dimension, ...] | None:
        """Return the first dimension of a tensor, () of a scalar; None: the rank is unknown."""
        kind = self.types.get(value)
        if kind is None or kind.container is not ContainerKind.TENSOR or kind.shape is None:
            return None
        return kind.shape[:1]


def read_graph(path: Path) -> ModelGraph:
    """Return the graph of the model at ``path``. Raises InvalidModelError if it cannot be read."""
    file = read_model_file(path)
    normalise(file.proto)
    model = _typed(file.proto, path)
    graph = model.graph
    types = {name: from_type_proto(kind) for name, kind in types_of(graph).items()}
    constant = constants_of(graph)
    inputs = tuple(
        Variable(info.name, types[info.name], info.name in constant) for info in graph.input
    )
    firsts = {(each.type.shape or (None,))[0] for each in inputs if not each.optional}
    return ModelGraph(
        path,
        model,
        file,
        types,
        inputs,
        tuple(Variable(info.name, types[info.name]) for info in graph.output),
        firsts.pop() if len(firsts) == 1 else None,
    )


def _typed(proto: ModelProto, path: Path) -> ModelProto:
    """Return the model with inferred types; first dimensions without a name get one, which
    inference carries on."""
    model = ModelProto()
    model.CopyFrom(proto)
    constant = constants_of(model.graph)
    inputs = [info for info in model.graph.input if info.name not in constant]
    if all(is_unnamed(_first(info)) for info in inputs):
        for info in inputs:
            _first(info).dim_param = _BATCH
    for propagates in (True, False):
        try:
            return onnx.shape_inference.infer_shapes(model, data_prop=propagates)
        except Exception as error:  # noqa: BLE001  # whatever inference dislikes
            reason = error
    raise InvalidModelError(f"{path}: the types of its values cannot be inferred: {reason}")


def _first(info: onnx.ValueInfoProto) -> onnx.TensorShapeProto.Dimension:
    """Return the first dimension of an input, one of size 1 if there is none."""
    dims = info.type.tensor_type.shape.dim
    return dims[0] if dims else onnx.TensorShapeProto.Dimension(dim_value=1)


def sizes_text(shape: Sequence[Dimension]) -> str:
    """Return sizes as text: ``[rows, 3, ?, ?]``. The rows have that name unless the model gives
    them another one; ``?`` stands for a size without a name."""
    names: dict[Dimension, str] = {_BATCH: "rows", None: "?"}
    return f"[{', '.join(names.get(size) or str(size) for size in shape)}]"


def readable(graph: ModelGraph) -> tuple[int, ...] | None:
    """Return the row shape of the model's only needed input. None if it needs several, or that is
    no float32 tensor of fixed rows."""
    if len(graph.needed) != 1 or not graph.all_have_rows:
        return None
    kind = graph.needed[0].type
    sizes = (kind.shape or ())[1:]
    fixed = tuple(size for size in sizes if isinstance(size, int) and size > 0)
    is_fit = kind.dtype == "float32" and len(fixed) == len(sizes) and 1 <= len(fixed) <= 3
    return fixed if is_fit else None


_FED = frozenset({"float32", "int64", "int32", "uint8", "int8", "bool"})


def can_be_fed(graph: ModelGraph) -> bool:
    """Whether an exit can read all of the model's inputs, of whatever sizes."""
    kinds = {each.type.dtype for each in graph.needed}
    return graph.all_have_rows and kinds <= _FED


@dataclass(frozen=True, slots=True)
class ExitPoint:
    """A value of a model, behind which it can be cut: nothing else is live there."""

    position: int
    """The number of nodes of the graph done there."""
    value: str
    """The name of the hidden output that an exit reads."""
    share: float = 0.0
    """The share of the model's predicted time before it."""


def exit_points(graph: ModelGraph, last_position: int | None = None) -> tuple[ExitPoint, ...]:
    """Return all values that can have an exit, in order; none behind ``last_position`` nodes.

    Each is a float32 tensor of rank 2 to 4 with the batch as its first dimension, so that rows can
    leave a batch there. Values in front of a node that ONNX Runtime fuses are left out, unless
    there are no others.
    """
    if not is_in_order(graph.graph):
        return ()
    end = len(graph.graph.node) if last_position is None else last_position
    elapsed = list(accumulate(predicted_times_ns(graph.model), initial=0.0))
    total = elapsed[-1] or 1.0
    points = [
        ExitPoint(position, value, elapsed[position] / total)
        for value, position in single_values(graph.graph).items()
        if position < end
        and graph.may_have_rows(value)
        and graph.types[value].dtype == "float32"
        and graph.types[value].rank in (2, 3, 4)
    ]
    free = [each for each in points if not is_fused_with_next(graph.graph, each.position)]
    return tuple(sorted(free or points, key=lambda each: each.position))


LATEST = 0.9
"""The share of the model's time behind which a cache saves nothing."""


def can_have_caches(graph: ModelGraph, last_position: int) -> bool:
    """Whether there are points at which a cache could save time."""
    return any(point.share < LATEST for point in exit_points(graph, last_position))


EARLIER = 1.5
"""The exponent by which points are denser at the start, where an answer saves most."""


def spread(points: Sequence[ExitPoint], reach_s: Sequence[float], count: int) -> tuple[int, ...]:
    """Return the indices of at most ``count`` of ``points``, spread over the time to reach them.

    Most lie early, where adapted caches of recurring traffic answer nearly all (GATI, Table 7).
    None lies at the very end, where an exit saves nothing.
    """
    if len(points) <= count:
        return tuple(range(len(points)))
    times_s = [reach_s[-1] * ((step + 1) / (count + 1)) ** EARLIER for step in range(count)]
    nearest = (min(range(len(points)), key=lambda i: abs(reach_s[i] - at_s)) for at_s in times_s)
    return tuple(sorted(set(nearest)))
