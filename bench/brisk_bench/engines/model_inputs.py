"""ONNX models of any kind, and inputs for them: generated, or the user's own if they matter.

A size that the file leaves open (a name, 0, a negative number, nothing) is symbolic. Generated
integers are 0 or 1, which no table is too small for; a model whose integers are lengths, rates or
positions is given its own by ``--input``, or by a file ``NAME.inputs.npz`` next to ``NAME.onnx``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from brisk.graph.files.mapping import map_file
from brisk.ort_format import is_ort_format
from brisk.segments.model.onnx_fields import damage_of
from brisk_bench.engines.agreement import load_arrays
from brisk_bench.harness.command_line import UnusableArgumentError

LENGTH = 128
"""Symbolic sizes of inputs of rank 2 and 3 other than the first: tokens, frames."""

SIDE = 224
"""Symbolic sizes of inputs of rank 4 and more other than the first: pixels."""

HINT = (
    "inputs were generated (integers are 0 or 1, open sizes guessed); where the model wants "
    "others, give them by --input, or in a file NAME.inputs.npz beside NAME.onnx"
)

INPUT_HELP = (
    "NAME:shape=1,3,224,224 (generated in that shape), NAME=16000 (filled with that number), "
    "NAME=FILE.npy, or FILE.npz with arrays by input name; may be given several times"
)

_NUMBERS = "biufc"


@dataclass(frozen=True, slots=True)
class GivenInputs:
    """The user's inputs by name: arrays, of which a single number fills the input, and shapes."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def names(self) -> set[str]:
        return {*self.arrays, *self.shapes}


NOTHING_GIVEN = GivenInputs()


def add_input_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--input``; ``read_given`` reads what it collects."""
    parser.add_argument(
        "--input", dest="inputs", action="append", default=[], metavar="NAME=…", help=INPUT_HELP
    )


def add_models_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--models DIR``, which may be given several times."""
    parser.add_argument(
        "--models",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="all *.onnx files in it and below, a row each, and geometric means "
        "(`brisk bench real_models DIR` lays out such a folder)",
    )


def models_in(folders: Sequence[Path]) -> list[Path]:
    """Return every ``*.onnx`` file in the folders and below, in order, without hidden folders.

    Raises UnusableArgumentError if a folder does not exist or has no such file.
    """
    models: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise UnusableArgumentError(f"{folder} is no folder")
        files = [
            file
            for file in sorted(folder.rglob("*.onnx"))
            if file.is_file() and "/." not in f"/{file.relative_to(folder)}"
        ]
        if not files:
            raise UnusableArgumentError(f"{folder} holds no *.onnx file, nor does a folder in it")
        models += files
    return models


def labelled(files: Sequence[Path]) -> dict[str, Path]:
    """Return the files by distinct names: ENTRY/VERSION of a repository, a folder's name for its
    ``model.onnx``, else the file's own; two of the same name have their folder's before it."""
    names = [_label(file) for file in files]
    counts = Counter(names)
    by_label: dict[str, Path] = {}
    for name, file in zip(names, files, strict=True):
        label = name if counts[name] == 1 else f"{file.resolve().parent.name}/{name}"
        by_label[label if label not in by_label else str(file)] = file
    return by_label


def _label(file: Path) -> str:
    parent = file.resolve().parent
    if parent.name.isdigit():
        return f"{parent.parent.name}/{parent.name}"
    return parent.name if file.stem == "model" else file.stem


def given_models(
    files: Iterable[Path], folders: Sequence[Path], texts: Iterable[str], others: int = 0
) -> tuple[list[Path], GivenInputs]:
    """Return all ``files`` and those in the ``folders``, and the inputs given by ``--input``.

    ``others``: number of further models; ``--input`` is for one model only. Raises
      UnusableArgumentError.
    """
    models = [*files, *models_in(folders)]
    for file in models:
        if not file.is_file():
            raise UnusableArgumentError(f"there is no file {file}")
    inputs = read_given(texts)
    if inputs.names() and len(models) + others != 1:
        raise UnusableArgumentError(
            "--input is of one model; beside each of several lies its NAME.inputs.npz"
        )
    return models, inputs


def read_given(texts: Iterable[str]) -> GivenInputs:
    """Read the values of ``--input``.

    Raises UnusableArgumentError for a text of no known form, and for a file that cannot be read.
    """
    arrays: dict[str, np.ndarray] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, is_pair, value = text.rpartition("=")
        try:
            if name.endswith(":shape"):
                sizes = tuple(int(size) for size in value.split(","))
                if min(sizes) < 1:
                    raise ValueError(value)
                shapes[name.removesuffix(":shape")] = sizes
            elif not is_pair and text.endswith(".npz"):
                arrays |= _read_arrays(Path(text))
            elif is_pair and value.endswith(".npy"):
                arrays[name] = _read_array(Path(value))
            elif is_pair:
                arrays[name] = np.array(float(value))
            else:
                raise ValueError(text)
        except ValueError as error:
            raise UnusableArgumentError(f"--input {text}: expected {INPUT_HELP}") from error
    return GivenInputs(arrays, shapes)


def make_inputs(model: Path, given: GivenInputs = NOTHING_GIVEN) -> dict[str, np.ndarray]:
    """Return one array for each required input: a ``given`` one, else ``NAME.inputs.npz``'s, else
    a generated one.

    Generated floats are normal, integers 0 or 1 (bytes of rank 3 and more, as of pixels: any),
    masks all 1, booleans drawn, texts a word; first dimensions are 1 where they are open. Raises
    UnusableArgumentError for an input that cannot be generated, and for a given one that the model
    does not have or that does not fit.
    """
    try:
        graph = onnx.load(model, load_external_data=False).graph
    except OSError as error:
        raise UnusableArgumentError(f"{model}: cannot be read: {error.strerror}") from error
    except Exception as error:  # protobuf's own errors have no common class
        data = map_file(model)[0]
        said = f"not a complete ONNX model: {damage_of(data)}"
        if is_ort_format(data):
            said = "it is in ONNX Runtime's own format, of which no inputs are made up"
        raise UnusableArgumentError(f"{model}: {said}") from error
    constants = {initializer.name for initializer in graph.initializer}
    values = [value for value in graph.input if value.name not in constants]
    names = {value.name for value in values}
    if unknown := sorted(given.names() - names):
        choices = ", ".join(sorted(names)) or "none"
        raise UnusableArgumentError(f"{model.name} has no input '{unknown[0]}'; it has: {choices}")
    beside = model.with_name(f"{model.stem}.inputs.npz")
    arrays = _read_arrays(beside) if beside.is_file() else {}
    given = GivenInputs({**arrays, **given.arrays}, given.shapes)
    firsts = [value.type.tensor_type.shape.dim[:1] for value in values]
    batches = {dimension.dim_param for first in firsts for dimension in first} - {""}
    random = np.random.default_rng(0)
    return {value.name: _input(value, graph, batches, given, random) for value in values}


def were_given(model: Path, given: GivenInputs) -> bool:
    """Whether any input is the user's own, so that ``HINT`` would say nothing new."""
    return bool(given.names()) or model.with_name(f"{model.stem}.inputs.npz").is_file()


def _input(
    value: onnx.ValueInfoProto,
    graph: onnx.GraphProto,
    batches: set[str],
    given: GivenInputs,
    random: np.random.Generator,
) -> np.ndarray:
    name = value.name
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value") or "of no type"
        raise UnusableArgumentError(f"input '{name}' is no tensor ({kind}), which is not measured")
    dtype = _dtype(value)
    array = given.arrays.get(name)
    if array is not None and array.ndim:
        return _checked(value, array, dtype)
    shape = given.shapes.get(name) or _shape(value, graph, batches, is_filled=array is not None)
    if array is not None:
        return _checked(value, np.full(shape, array), dtype)
    return _drawn(name, shape, dtype, random)


def _dtype(value: onnx.ValueInfoProto) -> np.dtype:
    element = value.type.tensor_type.elem_type
    if element == onnx.TensorProto.STRING:
        return np.dtype(np.str_)
    if element == onnx.TensorProto.UNDEFINED:
        raise UnusableArgumentError(f"input '{value.name}' declares no element type")
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(element))
    if dtype.kind not in _NUMBERS:
        named = onnx.TensorProto.DataType.Name(element)
        raise UnusableArgumentError(
            f"input '{value.name}' is of {named}, a type that numpy has no arrays of"
        )
    return dtype


def _shape(
    value: onnx.ValueInfoProto,
    graph: onnx.GraphProto,
    batches: set[str],
    *,
    is_filled: bool,
) -> tuple[int, ...]:
    """Return an input's shape, with a number for each symbolic size.

    ``batches``: names of any input's first dimension, 1 wherever they occur.
    """
    declared = value.type.tensor_type
    if not declared.HasField("shape"):
        if is_filled:
            return ()
        raise UnusableArgumentError(
            f"input '{value.name}' declares no shape; give one: --input {value.name}:shape=1,2,3"
        )
    channels = _channels(value.name, graph)
    rank = len(declared.shape.dim)

    def size_of(position: int, dimension: onnx.TensorShapeProto.Dimension) -> int:
        if dimension.dim_value > 0:
            return int(dimension.dim_value)
        if position == 0 or dimension.dim_param in batches:
            return 1
        return (position == 1 and channels) or (LENGTH if rank < 4 else SIDE)

    return tuple(size_of(*each) for each in enumerate(declared.shape.dim))


def _channels(name: str, graph: onnx.GraphProto) -> int:
    """Return the second dimension that a convolution over the input needs; 0 without one."""
    weights = {initializer.name: initializer.dims for initializer in graph.initializer}
    for node in graph.node:
        if node.op_type == "Conv" and node.input[0] == name and node.input[1] in weights:
            groups = next((item.i for item in node.attribute if item.name == "group"), 1)
            return int(weights[node.input[1]][1]) * groups
    return 0


def _drawn(
    name: str, shape: Sequence[int], dtype: np.dtype, random: np.random.Generator
) -> np.ndarray:
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if dtype.kind == "c":
        parts = random.standard_normal((2, *shape))
        return (parts[0] + 1j * parts[1]).astype(dtype)
    if dtype.kind == "U":
        return np.full(shape, "word")
    if "mask" in name:
        return np.ones(shape, dtype)
    if dtype.itemsize == 1 and dtype.kind in "iu" and len(shape) > 2:
        bounds = np.iinfo(dtype)
        return random.integers(bounds.min, bounds.max + 1, shape).astype(dtype)
    return random.integers(0, 2, shape).astype(dtype)


def _checked(value: onnx.ValueInfoProto, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return ``array`` if it fits the declaration, cast to its type.

    A cast to integers or booleans must not change a value.
    """
    declared = value.type.tensor_type
    if dtype.kind == "U":
        if array.dtype.kind not in "US":
            raise UnusableArgumentError(f"input '{value.name}' is of texts, not of {array.dtype}")
        return array.astype(np.str_)
    cast = array.astype(dtype, casting="unsafe") if array.dtype.kind in _NUMBERS else None
    if cast is None or not (dtype.kind in "fc" or np.array_equal(cast, array)):
        raise UnusableArgumentError(f"input '{value.name}' is of {dtype}, not of {array.dtype}")
    if not declared.HasField("shape"):
        return cast
    sizes = [dimension.dim_value for dimension in declared.shape.dim]
    fits = len(sizes) == cast.ndim and all(
        size <= 0 or size == actual for size, actual in zip(sizes, cast.shape, strict=True)
    )
    if not fits:
        shape = [size if size > 0 else "any" for size in sizes]
        raise UnusableArgumentError(
            f"input '{value.name}' has shape {shape}; one of {list(cast.shape)} was given"
        )
    return cast


def _read_arrays(file: Path) -> dict[str, np.ndarray]:
    try:
        return load_arrays(file)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UnusableArgumentError(f"{file} holds no arrays by name (.npz): {error}") from error


def _read_array(file: Path) -> np.ndarray:
    try:
        array = np.load(file)
    except (OSError, ValueError) as error:
        raise UnusableArgumentError(f"{file} holds no array (.npy): {error}") from error
    if not isinstance(array, np.ndarray):
        raise UnusableArgumentError(f"{file} holds no single array (.npy)")
    return array
