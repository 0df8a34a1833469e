"""Starting a model without a prepared form by the form of another model of its structure.

Two versions of a model, or a network and its fine-tune, differ only in the values of their
weights. What is left without these values is their *skeleton*; forms are noted under those of
their models, so that the next model of a skeleton starts without being optimized.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from onnx import GraphProto, ModelProto

from brisk.artefacts import content, skeletons
from brisk.artefacts.container import Container
from brisk.errors import ArtefactError
from brisk.paths import Stamp
from brisk.segments.model.extraction import normalise
from brisk.segments.model.model_file import ModelFile, read_model_file
from brisk.segments.onnxruntime import Weight
from brisk.segments.prepared.manifest import fingerprint
from brisk.segments.prepared.recipes import floats_of, follow, read_recipe
from brisk.segments.sharing import KeptStructure
from brisk.segments.source import FileBytes

MOST_OTHER_BYTES = 1 << 20
"""The most bytes of large weights that belong to the skeleton, whose digest a start waits for."""

_Form = TypeVar("_Form")

_TOLD = ("doc_string", "producer_name", "producer_version", "metadata_props", "domain")
"""Fields of a model that do not affect what it computes."""


class Sibling:
    """The model in ``file``, which another model's form may start."""

    def __init__(self, file: ModelFile, digest: str, floats: Mapping[str, np.ndarray]) -> None:
        self.file = file
        self.digest = digest
        self._floats = floats

    def check(self, path: Path, record: Mapping[str, Any]) -> Mapping[str, Stamp]:
        """Return the stamps of the model's files. ``record``: the manifest of the form at
        ``path``.

        Raises ArtefactError if it is the form of models of another skeleton.
        """
        if record.get("skeleton") != self.digest:
            raise ArtefactError(f"{path}: made of a model of another structure")
        return self.file.stamps

    def reads(self, kept: KeptStructure) -> Sequence[FileBytes]:
        """Return the bytes of the model's files that ``weights`` reads."""
        recipes = [read_recipe(each) for each in kept.recipes or ()]
        names = {name for recipe in recipes if recipe is not None for name in recipe.sources}
        return self.file.bytes_of(names)

    def weights(self, kept: KeptStructure, container: Container) -> tuple[Weight, ...]:
        """Return the weights of the segment's structure, with this model's values.

        Raises ArtefactError if a file has changed meanwhile, or the form is damaged.
        """
        if kept.recipes is None or len(kept.recipes) != len(kept.weights):
            raise ArtefactError(f"{container.path}: no recipes of a segment's weights")
        values = []
        for weight, blob, record in zip(kept.weights, kept.blobs, kept.recipes, strict=True):
            data = weight.data
            try:
                recipe = read_recipe(record)
                if recipe is None:
                    container.verify(blob)
                else:
                    data = follow(recipe, self._floats)
            except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
                raise ArtefactError(
                    f"{container.path}: the recipe of a weight does not fit: {error!r}"
                ) from error
            if data.size != weight.data.size:
                raise ArtefactError(
                    f"{container.path}: a weight has another size than its model's"
                )
            values.append(Weight(weight.name, data, weight.kind, weight.shape))
        if written := content.written_since(self.file.path, self.file.stamps):
            raise ArtefactError(f"{written} was written to while it was loaded")
        return tuple(values)


def sibling_of(
    file: ModelFile, is_looked_for: Callable[[str], bool] = lambda prefix: True
) -> Sibling | None:
    """Return the model as a sibling; None: it can have no siblings, or ``is_looked_for`` returns
    False for the beginning of its skeleton."""
    if file.unread is not None:
        return None
    normalise(file.proto)
    graph = file.proto.graph
    prefix = f"{len(graph.node)}-{len(graph.initializer)}-"
    if graph.sparse_initializer or not is_looked_for(prefix):
        return None
    try:
        floats = floats_of(graph, file)
        others = (weight.data.size for name, weight in file.weights.items() if name not in floats)
        if sum(others) > MOST_OTHER_BYTES:
            return None
        return Sibling(file, prefix + _skeleton(file, floats), floats)
    except (KeyError, TypeError, ValueError):
        return None  # opening the model reports what is wrong


def find_form(sibling: Sibling, open_form: Callable[[Path], _Form]) -> _Form | None:
    """Return what ``open_form`` makes of the first form that can start the sibling; None: there is
    none.

    ``open_form`` raises ArtefactError for a form that cannot be used.
    """
    for path in skeletons.noted_forms(sibling.digest):
        try:
            return open_form(path)
        except ArtefactError:
            continue  # it is gone, or damaged: its own model will report that
    return None


def skeleton_of(model: Path) -> str:
    """Return the skeleton of a file's model; empty: it can have no siblings. Raises
    InvalidModelError."""
    sibling = sibling_of(read_model_file(model))
    return "" if sibling is None else sibling.digest


def note_form(skeleton: str, path: Path, structures: Sequence[Mapping[str, Any]]) -> bool:
    """Note the form at ``path`` of a model of that skeleton. ``structures``: those of its
    segments, as in its manifest.

    Return False if another form of the skeleton has other recipes: optimizing depends on values
    then, and no form starts another model any more. Raises OSError.
    """
    if skeletons.is_refused(skeleton):
        return True  # that was reported then
    text = repr([(each["digest"], each["recipes"]) for each in structures])
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    with skeletons.changing():  # else of two that come at once neither sees the other
        noted = skeletons.noted_forms(skeleton)
        others = {each: other for each, other in noted.items() if each != path and each.is_file()}
        agrees = all(other == digest for other in others.values())
        skeletons.note_forms(skeleton, {path: digest, **others} if agrees else {})
    return agrees


def _skeleton(file: ModelFile, floats: Collection[str]) -> str:
    """Return a digest of all of the model but the values of ``floats``."""
    bare = ModelProto()
    bare.CopyFrom(file.proto)
    for field in _TOLD:
        bare.ClearField(field)
    bare.graph.ClearField("doc_string")
    digest = hashlib.blake2b(repr(sorted(fingerprint().items())).encode(), digest_size=16)
    _clear_values(bare.graph, floats)
    for tensor in bare.graph.initializer:
        weight = file.weights.get(tensor.name)
        if weight is not None and tensor.name not in floats:
            digest.update(weight.data.data)
            tensor.ClearField("external_data")
    digest.update(bare.SerializeToString(deterministic=True))
    return digest.hexdigest()


def _clear_values(graph: GraphProto, names: Collection[str]) -> None:
    for tensor in graph.initializer:
        if tensor.name in names:
            name, kind, dims = tensor.name, tensor.data_type, list(tensor.dims)
            tensor.Clear()
            tensor.name, tensor.data_type = name, kind
            tensor.dims.extend(dims)
