"""Recipes: how the weights of an optimized graph follow from those in its model's file.

Optimizing a graph is most of what a first start takes, and much of that is work on the weights:
batch normalizations are folded into convolutions, filters are laid out in blocks. What ONNX
Runtime did to the weights of one model is a recipe for each model of that structure (PASK, III-B:
a solution is found by its pattern), which numpy follows to the same bits.

A recipe is found on random weights of both signs in the model's place, so that nothing is hidden
by what the model's own have in common: zeros, ones, a sign. It holds if the changed model has the
same structure, and if it makes of the model's own weights what ONNX Runtime made of them. A model
that computes a value of weights alone, which need not show on random ones, has no recipes; nor has
one with functions or bodies, which may do so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from brisk.errors import InvalidModelError
from brisk.segments.model.extraction import Segment
from brisk.segments.model.graph_names import (
    constants_of,
    has_bodies,
    is_in_order,
    shape_values,
)
from brisk.segments.model.model_file import ModelFile
from brisk.segments.model.structure import Structure, is_fixed, structure_of
from brisk.segments.prepared.saving import save_optimised

MOST_BYTES = 128 << 20
"""The most bytes of a segment's weights, which are changed and optimised once more in memory."""

BLOCKS = (8, 16)
"""Channels that ONNX Runtime's convolutions take at once, by processor (NCHWc)."""

_TAKEN = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE})

_RESHAPES = frozenset({"Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten"})
"""Operators that leave the values of their first input as they are."""

_MOVES = _RESHAPES | {"Transpose", "Expand", "Tile", "Slice", "Gather"}
"""Operators whose output has values of the first input alone, wherever these stand in it."""

_NORMALISES = "BatchNormalization"

Floats = Mapping[str, np.ndarray]


class Fold(NamedTuple):
    """A node after a convolution that becomes part of its weights. ``names``: of the node's other
    inputs."""

    operator: str
    names: tuple[str, ...]
    epsilon: float = 0.0


class Recipe(NamedTuple):
    """The steps by which a weight of a structure follows from a model's weights."""

    weight: str
    """The name of an initialiser; with ``folds`` that of a convolution's filters."""
    bias: str = ""
    """The name of the convolution's bias; empty: it has none."""
    folds: tuple[Fold, ...] = ()
    is_bias: bool = False
    """Whether the value is such a convolution's folded bias."""
    layout: tuple[int, ...] = ()
    """The layout of the value. Empty: as it is. (size,): a vector, with zeros to that size.
    (block, whole): filters, whose output channels, and if ``whole`` input channels too, lie in
    blocks."""

    @property
    def is_view(self) -> bool:
        """Whether the weight is the initializer itself, in place."""
        return not self.folds and not self.layout

    @property
    def sources(self) -> set[str]:
        return {self.weight, self.bias, *(name for fold in self.folds for name in fold.names)}


def read_recipe(record: Sequence[Any] | None) -> Recipe | None:
    """Return a manifest's recipe; None: the value does not depend on the model's weights.

    Raises TypeError or ValueError if the record is malformed.
    """
    if record is None:
        return None
    weight, bias, folds, is_bias, layout = record
    return Recipe(
        str(weight),
        str(bias),
        tuple(Fold(str(name), tuple(map(str, of)), float(epsilon)) for name, of, epsilon in folds),
        bool(is_bias),
        tuple(map(int, layout)),
    )


def follow(recipe: Recipe, floats: Floats) -> np.ndarray:
    """Return the weight's bytes for the model with these initializers; a view of theirs if nothing
    is done to them. Raises KeyError or ValueError if the model is not of that structure."""
    value = _folded(recipe, floats) if recipe.folds else floats[recipe.weight]
    laid = np.ascontiguousarray(_laid_out(value, recipe.layout))
    return laid.reshape(-1).view(np.uint8)


def _folded(recipe: Recipe, floats: Floats) -> np.ndarray:
    """Return the folded value as ONNX Runtime's fusions make it, in its order and precision."""
    weight = None if recipe.is_bias else floats[recipe.weight]
    bias = floats[recipe.bias] if recipe.bias else None
    channels = floats[recipe.weight].shape[0]
    for fold in recipe.folds:
        values = [floats[name] for name in fold.names]
        if fold.operator == "Add":
            added = _of_channels(values[0], channels)
            bias = added if bias is None else bias + added
            continue
        if fold.operator == _NORMALISES:
            scale, offset, mean, variance = values
            factor = scale / np.sqrt(variance + scale.dtype.type(fold.epsilon))
            bias = offset - mean * factor if bias is None else (bias - mean) * factor + offset
        else:
            factor = _of_channels(values[0], channels)
            bias = None if bias is None else bias * factor
        if weight is not None:
            weight = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    result = bias if recipe.is_bias else weight
    if result is None:
        raise ValueError("a convolution without a bias")
    return result


def _of_channels(array: np.ndarray, channels: int) -> np.ndarray:
    return np.broadcast_to(array.reshape(-1), (channels,))


def _laid_out(array: np.ndarray, layout: Sequence[int]) -> np.ndarray:
    if not layout:
        return array
    if len(layout) == 1:
        padded = np.zeros(layout[0], array.dtype)
        padded[: array.size] = array
        return padded
    block, is_whole = layout
    outer, inner, *size = array.shape
    rows, columns = _up(outer, block), _up(inner, block) if is_whole else inner
    if (rows, columns) != (outer, inner):
        padded = np.zeros((rows, columns, *size), array.dtype)
        padded[:outer, :inner] = array
        array = padded
    if not is_whole:
        return array.reshape(rows // block, block, columns, *size).transpose(0, 2, 3, 4, 1)
    parts = array.reshape(rows // block, block, columns // block, block, *size)
    return parts.transpose(0, 2, 4, 5, 3, 1)


def _up(size: int, block: int) -> int:
    return -(-size // block) * block


# Finding recipes.


def find_recipes(
    segment: Segment, file: ModelFile, structure: Structure, threads: int, folder: Path
) -> tuple[Recipe | None, ...] | None:
    """Return a recipe for each of the structure's weights; see ``read_recipe``. None: there is not
    one for each, so that no other model's weights can take their place.

    ``folder``: where a folder for ``save_optimised`` is made. Raises OSError like that.
    """
    graph = segment.proto.graph
    if segment.proto.functions or has_bodies(graph) or not is_in_order(graph):
        return None
    floats = floats_of(graph, file)
    sizes = {name: each.nbytes for name, each in floats.items()}
    for tensor in graph.initializer:
        if tensor.name in file.weights:
            sizes[tensor.name] = file.weights[tensor.name].data.nbytes
    if sum(sizes.values()) > MOST_BYTES or _are_computed_with(graph, floats):
        return None
    variances = _variances(graph, floats)
    changed = {
        name: _random(array, name, is_positive=name in variances) for name, array in floats.items()
    }
    other = Segment(segment.spec, _with_values(segment.proto, file, changed))
    nothing = replace(file, proto=ModelProto(), weights={}, files={})
    apart = folder / "changed"
    apart.mkdir()
    try:
        saved, _ = save_optimised(other, nothing, threads, apart)
    except InvalidModelError:
        return None
    alike = structure_of(saved.proto, saved.weights, segment.spec)
    if alike is None or alike.digest != structure.digest:
        return None
    book = _Book(graph, changed)
    recipes: list[Recipe | None] = []
    used: set[str] = set()
    for own, weight in zip(structure.weights, alike.weights, strict=True):
        if np.array_equal(own.data, weight.data):
            recipes.append(None)
            continue
        recipe = book.find(weight.data, weight.kind, weight.shape)
        if recipe is None or not np.array_equal(follow(recipe, floats), own.data):
            return None
        recipes.append(recipe)
        used |= recipe.sources
    return tuple(recipes) if used >= floats.keys() else None


def _are_computed_with(graph: GraphProto, floats: Collection[str]) -> bool:
    """Whether a value other than those of ``floats``, moved or not, follows from them alone or
    from them and sizes, which may be known.

    It would be computed once, when a session is made, and random weights may not alter it: a mask
    of the weights above a bound, or a size.
    """
    derived = set(floats)
    constant = derived | constants_of(graph) | shape_values(graph)
    for node in graph.node:  # in an order in which they can run
        if not all(name in constant for name in node.input if name):
            continue
        constant.update(node.output)
        if derived.isdisjoint(node.input):
            continue
        if node.op_type not in _MOVES or not derived.isdisjoint(node.input[1:]):
            return True
        derived.update(node.output)
    return False


def floats_of(graph: GraphProto, file: ModelFile) -> dict[str, np.ndarray]:
    """Return what models of one structure may differ in: floats of two elements and more, except
    those that decide more than a value."""
    fixed = {name for node in graph.node if is_fixed(node) for name in node.input}
    floats = {}
    for tensor in graph.initializer:
        if tensor.data_type not in _TAKEN or tensor.name in fixed or np.prod(tensor.dims) < 2:
            continue
        weight = file.weights.get(tensor.name)
        floats[tensor.name] = numpy_helper.to_array(tensor) if weight is None else weight.array
    return floats


def _variances(graph: GraphProto, floats: Collection[str]) -> set[str]:
    """Return the names in ``floats`` of variances: the square root of each is taken."""
    origins = _origins(graph, floats)
    nodes = (node for node in graph.node if node.op_type == _NORMALISES)
    return {origins[name] for node in nodes for name in node.input[4:5] if name in origins}


def _origins(graph: GraphProto, floats: Collection[str]) -> dict[str, str]:
    """Return the name in ``floats`` of each value that is one of them, in its shape or another."""
    origins = {name: name for name in floats}
    for node in graph.node:
        if node.op_type in _RESHAPES and node.input[0] in origins:
            origins[node.output[0]] = origins[node.input[0]]
    return origins


def _random(array: np.ndarray, name: str, *, is_positive: bool) -> np.ndarray:
    """Return values of the array's type and shape, most of them between 0.1 and 10, and of both
    signs unless ``is_positive``. They depend on ``name``, not on the array's own values."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
    rng = np.random.default_rng(seed)
    values = np.exp(rng.standard_normal(array.shape, np.float32))
    if not is_positive:
        values *= rng.choice(np.array([-1, 1], np.float32), array.shape)
    return values.astype(array.dtype)


def _with_values(proto: ModelProto, file: ModelFile, values: Floats) -> ModelProto:
    """Return the model with all its weights in its message, those of ``values`` replaced."""
    model = ModelProto()
    model.CopyFrom(proto)
    for tensor in model.graph.initializer:
        weight = file.weights.get(tensor.name)
        if tensor.name in values:
            raw = values[tensor.name].tobytes()
        elif weight is not None:
            raw = weight.data.tobytes()
        else:
            continue
        kind, dims, name = tensor.data_type, list(tensor.dims), tensor.name
        tensor.Clear()
        tensor.name, tensor.data_type, tensor.raw_data = name, kind, raw
        tensor.dims.extend(dims)
    return model


class _Book:
    """Recipes by the values that they give before these are laid out."""

    def __init__(self, graph: GraphProto, floats: Floats) -> None:
        self._recipes = {_digest(array): Recipe(name) for name, array in floats.items()}
        self._shapes = {array.shape for array in floats.values()}
        for recipe in _folds(graph, floats):
            for each in (recipe, recipe._replace(is_bias=True)):
                try:
                    self._recipes.setdefault(_digest(_folded(each, floats)), each)
                except ValueError:
                    continue  # one without a bias

    def find(self, data: np.ndarray, kind: int, shape: tuple[int, ...]) -> Recipe | None:
        recipe = self._recipes.get(_digest(data))
        if recipe is not None or kind != TensorProto.FLOAT:
            return recipe
        array = data.view(np.float32)
        if len(shape) == 1:
            return self._padded(array)
        return self._blocked(array, shape) if len(shape) == 4 else None

    def _padded(self, array: np.ndarray) -> Recipe | None:
        for (size,) in (each for each in self._shapes if len(each) == 1):
            if size < array.size < size + max(BLOCKS) and not array[size:].any():
                recipe = self._recipes.get(_digest(array[:size]))
                if recipe is not None:
                    return recipe._replace(layout=(array.size,))
        return None

    def _blocked(self, array: np.ndarray, shape: tuple[int, ...]) -> Recipe | None:
        rows, columns, *size = shape
        fitting = {
            (outer, inner)
            for outer, inner, *rest in (each for each in self._shapes if len(each) == 4)
            if rest == size and outer <= rows and inner <= columns
        }
        for block in BLOCKS:
            for is_whole in (0, 1):
                if rows % block or (is_whole and columns % block):
                    continue
                parts = (rows // block, columns // block if is_whole else columns, *size)
                if is_whole:
                    order = array.reshape(*parts, block, block).transpose(0, 5, 1, 4, 2, 3)
                else:
                    order = array.reshape(*parts, block).transpose(0, 4, 1, 2, 3)
                plain = order.reshape(shape)
                for outer, inner in fitting:
                    filled = _up(outer, block), _up(inner, block) if is_whole else inner
                    if filled != (rows, columns):  # with more zeros than these blocks need
                        continue
                    recipe = self._recipes.get(_digest(plain[:outer, :inner]))
                    if recipe is not None:
                        return recipe._replace(layout=(block, is_whole))
        return None


def _folds(graph: GraphProto, floats: Floats) -> Iterator[Recipe]:
    """Yield a recipe for each convolution and each node after it that could become part of its
    weights."""
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    origins = _origins(graph, floats)
    for node in graph.node:
        weight, bias = (*node.input[1:3], "", "")[:2]
        bias = origins.get(bias, bias)
        if node.op_type != "Conv" or weight not in floats or (bias and bias not in floats):
            continue
        recipe, value = Recipe(weight, bias), node.output[0]
        while len(behind := readers.get(value, [])) == 1:
            others = tuple(origins.get(name, name) for name in behind[0].input if name != value)
            fold = _fold(behind[0], others, floats, floats[weight].shape[0])
            if fold is None:
                break
            recipe = recipe._replace(folds=(*recipe.folds, fold))
            value = behind[0].output[0]
            yield recipe


def _fold(node: NodeProto, others: tuple[str, ...], floats: Floats, channels: int) -> Fold | None:
    """Return how the node folds into a convolution; None: it does not. ``others``: the other names
    that it reads."""
    if any(name not in floats for name in others):
        return None
    if node.op_type == _NORMALISES and len(others) == 4:
        epsilons = (each.f for each in node.attribute if each.name == "epsilon")
        return Fold(_NORMALISES, others, next(epsilons, 1e-5))
    if node.op_type in ("Mul", "Add") and len(others) == 1:
        return Fold(node.op_type, others) if floats[others[0]].size == channels else None
    return None


def _digest(array: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).digest()
