"""A segment as ONNX Runtime optimizes it, saved by ONNX Runtime itself and read back.

It saves the graph after fusions, with weights in the layout of its kernels. Large weights come out
as bytes to be mapped; the rest stays in the model.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto
from onnx.external_data_helper import _get_all_tensors

from brisk.errors import InvalidModelError
from brisk.graph.files.element_types import PACKED, dtype_of_element
from brisk.graph.files.mapping import PAGE_BYTES
from brisk.graph.files.tensors import external_range
from brisk.segments.model.extraction import Segment
from brisk.segments.model.graph_names import names_in_bodies, operators_of, reads_of
from brisk.segments.model.model_file import ModelFile
from brisk.segments.model.row_tables import NamedTable, row_tables
from brisk.segments.onnxruntime import (
    FOLDER_ENTRY,
    IN_PLACE_BYTES,
    NEEDS_PACKING,
    NOWHERE,
    Weight,
    onnxruntime,
    session_options,
)
from brisk.tuning import SessionTuning


@dataclass(frozen=True, slots=True)
class OptimisedSegment:
    """A segment as ONNX Runtime has optimised it."""

    proto: bytes
    """The ONNX model."""
    weights: tuple[Weight, ...]
    """The weights that the model refers to, in order of first use, but tables of which a run reads
    a few rows last: if the form arrives, those come later."""
    needs_packing: bool
    """Whether the segment answers differently if its weights are not packed."""
    tables: tuple[NamedTable, ...] = ()


def save_optimised(
    segment: Segment, file: ModelFile, threads: int, folder: Path
) -> tuple[OptimisedSegment, Any]:
    """Return the optimized segment, its weights mapped from a file in ``folder``, and the session
    that was optimized, which has not packed its weights.

    Raises InvalidModelError naming model and segment, with ONNX Runtime's reason; OSError if the
    folder's disk is full.
    """
    library = onnxruntime()
    label = f"{file.path}: segment {segment.spec.index} ({segment.spec.words})"
    options = session_options(SessionTuning(), threads, is_warm=True)
    file.give_weights(options, segment.proto.graph)
    model, data = folder / "optimised.onnx", folder / "optimised.bin"
    options.optimized_model_filepath = str(model)
    for key, value in (
        (FOLDER_ENTRY, str(file.path.parent)),
        ("session.disable_prepacking", "1"),
        ("session.optimized_model_external_initializers_file_name", data.name),
        ("session.optimized_model_external_initializers_min_size_in_bytes", str(IN_PLACE_BYTES)),
    ):
        options.add_session_config_entry(key, value)
    names = (tensor.name for tensor in segment.proto.graph.initializer)
    _check_room(
        folder, sum(file.weights[name].data.size for name in names if name in file.weights)
    )
    try:
        session = library.InferenceSession(
            segment.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        proto = ModelProto.FromString(model.read_bytes())
    except DecodeError as error:
        raise InvalidModelError(f"{label}: what ONNX Runtime saved is cut off: {error}") from error
    except OSError:
        raise
    except Exception as error:
        _check_room(folder, PAGE_BYTES)
        raise InvalidModelError(
            f"{label}: ONNX Runtime {library.__version__} cannot save it optimised: {error}"
        ) from error
    content = np.memmap(data, np.uint8, "r") if data.exists() else np.zeros(0, np.uint8)
    tables = tuple(row_tables(proto.graph, {info.name for info in proto.graph.input}))
    weights = _take_weights(proto, content, label, {table.name for table in tables})
    needs_packing = NEEDS_PACKING in operators_of(proto)
    return OptimisedSegment(proto.SerializeToString(), weights, needs_packing, tables), session


def _check_room(folder: Path, needed_bytes: int) -> None:
    """Raise OSError if the disk is full: ONNX Runtime does not say why it could not write."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise OSError(
            errno.ENOSPC, f"{free} bytes are free, {needed_bytes} are needed", str(folder)
        )


def _take_weights(
    proto: ModelProto, content: np.ndarray, label: str, tables: Collection[str]
) -> tuple[Weight, ...]:
    """Return the weights that lie in ``content``; ``proto`` then says that they lie nowhere.

    Tensors that cannot be given to a session go into ``proto``: those of bodies, and those whose
    names a body has, too, for a value of its own. Inlining functions makes such names as well.
    Raises InvalidModelError if ``content`` is not what ``proto`` says.
    """
    used_weights: list[Weight] = []
    shadowed = names_in_bodies(proto.graph)
    for tensor in proto.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        data = _range(tensor, content, label)
        weight = Weight(tensor.name, data, tensor.data_type, tuple(tensor.dims))
        if weight.kind in PACKED or not weight.data.size or weight.name in shadowed:
            continue
        if weight.data.size != prod(weight.shape) * dtype_of_element(weight.kind).itemsize:
            raise InvalidModelError(f"{label}: '{tensor.name}' was saved with another size")
        used_weights.append(weight)
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value=NOWHERE[1])
    for tensor in _get_all_tensors(proto):
        if (
            tensor.data_location == TensorProto.EXTERNAL
            and external_range(tensor)[0] != NOWHERE[1]
        ):
            tensor.raw_data = _range(tensor, content, label).tobytes()
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
    order = _order_of_use(proto.graph)
    return tuple(
        sorted(
            used_weights, key=lambda each: (each.name in tables, order.get(each.name, len(order)))
        )
    )


def _range(tensor: TensorProto, content: np.ndarray, label: str) -> np.ndarray:
    _, offset, length = external_range(tensor)
    end = offset + length
    if not 0 <= offset <= end <= content.size:
        raise InvalidModelError(
            f"{label}: of '{tensor.name}' ONNX Runtime saved bytes {offset} to {end} in a file of "
            f"{content.size}: is the disk full?"
        )
    return content[offset:end]


def _order_of_use(graph: GraphProto) -> dict[str, int]:
    positions: dict[str, int] = {}
    for position, node in enumerate(graph.node):
        for name in reads_of(node):
            positions.setdefault(name, position)
    return positions
