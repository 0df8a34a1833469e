"""Samples from files: arrays, folders of images, captured requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from zipfile import BadZipFile
from zlib import error as DeflateError

import numpy as np

from brisk.errors import InvalidRequestError, counted
from brisk.exits.data.samples import Samples
from brisk.exits.files.sample_files import groups_of
from brisk.exits.model_graph import ModelGraph, sizes_text
from brisk.graph.program import Variable

LABELS = "labels"
"""The name of the optional array of true classes, int64 [rows]."""

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})


@dataclass(frozen=True, slots=True)
class ImageForm:
    """The conversion of pixels 0..255 to inputs: divided by ``scale``, less ``mean``, over
    ``deviation``."""

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    """One number for each channel, or one for all."""
    deviation: tuple[float, ...] = (1.0,)
    """One number for each channel, or one for all."""

    def check(self, channels: int) -> None:
        """Raise InvalidRequestError if it is of images of other ``channels``."""
        for name, numbers in (("mean", self.mean), ("deviation", self.deviation)):
            if len(numbers) not in (1, channels):
                raise InvalidRequestError(
                    f"{name} has {counted(len(numbers), 'number')} for images of "
                    f"{counted(channels, 'channel')}: expected one of each channel, or one of all"
                )


def read_samples(path: Path, graph: ModelGraph, form: ImageForm | None = None) -> Samples:
    """Read a ``.npz`` with an array for each input, a folder of such, or a folder of images.

    Images may lie in a folder for each class; its place in sorted order is the label. Raises
    InvalidRequestError that names what is missing, of another shape, or of an unknown name.
    """
    return joined(read_parts(path, graph, form), path)


def joined(parts: Sequence[Samples], path: Path) -> Samples:
    """Return what ``read_parts`` has read at ``path`` as one. Raises InvalidRequestError if the
    rows are of several shapes, or some have labels and others none."""
    names = parts[0].inputs
    try:
        inputs = {name: np.concatenate([part.inputs[name] for part in parts]) for name in names}
    except ValueError as error:
        raise InvalidRequestError(f"the files' arrays do not fit together: {error}") from error
    labels = [part.labels for part in parts if part.labels is not None]
    samples = Samples(inputs, np.concatenate(labels) if labels else None)
    if labels and len(labels) < len(parts):
        raise _wrongly_labelled(path, sum(map(len, labels)), len(samples))
    return samples


def read_parts(path: Path, graph: ModelGraph, form: ImageForm | None = None) -> list[Samples]:
    """Return the samples of each file, like ``read_samples``: rows of one file may have another
    shape than those of the next."""
    if path.is_file():
        return _read_file(path, graph)
    if not path.is_dir():
        raise InvalidRequestError(f"'{path}' is not there: expected a .npz file or a folder")
    if files := sorted(path.glob("*.npz")):
        return [samples for file in files for samples in _read_file(file, graph)]
    images = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    if not images:
        raise InvalidRequestError(f"folder '{path}' has neither .npz files nor images")
    return [_checked(_read_images(path, images, graph, form or ImageForm()), path, graph)]


def _read_file(file: Path, graph: ModelGraph) -> list[Samples]:
    """Read a user's file, or one of sampled traffic, which has a group for each shape."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, EOFError, ValueError, TypeError, BadZipFile, DeflateError) as error:
        raise InvalidRequestError(f"'{file}' is no readable .npz file: {error}") from error
    groups = groups_of(arrays)
    if not groups or {each.name for each in graph.needed} & arrays.keys():
        groups = [arrays]
    return [_read_arrays(file, group, graph) for group in groups]


def _read_arrays(file: Path, arrays: dict[str, np.ndarray], graph: ModelGraph) -> Samples:
    """Return a file's samples; a single array may have any name if there is one input."""
    names = [variable.name for variable in graph.needed]
    labels = np.atleast_1d(arrays.pop(LABELS)) if LABELS in arrays else None
    if len(names) == 1 and len(arrays) == 1:
        arrays = {names[0]: next(iter(arrays.values()))}
    missing = sorted(set(names) - set(arrays))
    if missing:
        raise InvalidRequestError(
            f"'{file}' has no array {', '.join(missing)}; it has {', '.join(sorted(arrays))}"
        )
    if others := sorted(set(arrays) - set(names)):
        expected = [*names, LABELS]
        near = get_close_matches(others[0], expected, n=1)
        guess = f"; did you mean '{near[0]}'?" if near else ""
        raise InvalidRequestError(
            f"'{file}' has an array '{others[0]}', which is none of {', '.join(expected)}{guess}"
        )
    samples = _checked(Samples(arrays), file, graph)
    if labels is not None and len(labels) != len(samples):
        raise _wrongly_labelled(file, len(labels), len(samples))
    return Samples(samples.inputs, labels)


def _wrongly_labelled(path: Path, labels: int, rows: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"'{path}' has {LABELS} of {counted(labels, 'row')}, inputs of {rows}: expected one of "
        "each row, or none"
    )


def _read_images(root: Path, files: Sequence[Path], graph: ModelGraph, form: ImageForm) -> Samples:
    from PIL import Image

    variable = graph.needed[0]
    shape = variable.type.shape
    if len(graph.needed) != 1 or shape is None or len(shape) != 4 or shape[1] not in (1, 3):
        raise InvalidRequestError(
            f"a folder of images fits models with one input [batch, 1 or 3, height, width]; "
            f"model '{graph.name}' takes {[one.name for one in graph.needed]}"
        )
    form.check(shape[1])
    mode = "RGB" if shape[1] == 3 else "L"
    sides = tuple(size for size in shape[2:] if isinstance(size, int))
    rows = []
    for file in files:
        try:
            with Image.open(file) as image:
                pixels = image.convert(mode)
                if len(sides) == 2 and pixels.size != (sides[1], sides[0]):
                    pixels = pixels.resize((sides[1], sides[0]), Image.Resampling.BILINEAR)
                rows.append(np.asarray(pixels, np.float32).reshape(*pixels.size[::-1], -1))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise InvalidRequestError(f"'{file}' is no readable image: {error}") from error
    try:
        stacked = np.stack(rows).transpose(0, 3, 1, 2)
    except ValueError as error:
        raise InvalidRequestError(f"the images are of different sizes: {error}") from error
    mean, deviation = (
        np.asarray(values, np.float32).reshape(1, -1, 1, 1)
        for values in (form.mean, form.deviation)
    )
    images = ((stacked / np.float32(form.scale) - mean) / deviation).astype(
        variable.type.dtype or "float32"
    )
    folders = [file.relative_to(root).parts[0] for file in files if file.parent != root]
    names = sorted(set(folders))
    labels = None
    if len(folders) == len(files):
        labels = np.array([names.index(name) for name in folders])
    return Samples({variable.name: np.ascontiguousarray(images)}, labels)


def _checked(samples: Samples, path: Path, graph: ModelGraph) -> Samples:
    """Return the samples, of the model's dtypes; raises InvalidRequestError if they do not fit."""
    inputs = {}
    for variable in graph.needed:
        array = samples.inputs[variable.name]
        if not _fits(array, variable):
            declared = variable.type
            raise InvalidRequestError(
                f"'{path}': input '{variable.name}' is {array.dtype} {list(array.shape)}, "
                f"expected {declared.dtype} {sizes_text(declared.shape or ())}"
            )
        with np.errstate(over="ignore"):  # what overflows is infinite
            read = array.astype(variable.type.dtype or array.dtype, copy=False)
        if read.dtype.kind == "f" and not np.isfinite(read).all():
            raise InvalidRequestError(
                f"'{path}': input '{variable.name}' has NaN or infinite values as {read.dtype}"
            )
        inputs[variable.name] = read
    rows = {len(array) for array in inputs.values()}
    if len(rows) != 1:
        raise InvalidRequestError(f"'{path}': arrays of {sorted(rows)} rows do not go together")
    return Samples(inputs, samples.labels)


def _fits(array: np.ndarray, variable: Variable) -> bool:
    declared = variable.type
    if declared.dtype is not None and not np.can_cast(array.dtype, declared.dtype, "same_kind"):
        return False
    return declared.shape is None or (
        array.ndim == len(declared.shape)
        and array.ndim > 0
        and all(
            not isinstance(size, int) or size == actual
            for size, actual in zip(declared.shape[1:], array.shape[1:], strict=True)
        )
    )
