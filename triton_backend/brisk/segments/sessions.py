"""ONNX Runtime's sessions of segments: one that starts at once, one that is fast for long."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from brisk.errors import InvalidModelError
from brisk.graph.value_types import dtype_of_element
from brisk.segments.extraction import Segment
from brisk.segments.library import onnxruntime
from brisk.segments.model_file import ModelFile, Weight


class Form(Enum):
    """How a session is made (NNV12's candidates for ONNX Runtime).

    ``IN_PLACE``: the graph as it is, computing on the weights of the mapped file. ``OPTIMISED``:
    graph optimised, weights packed as the kernels like them, all in memory of its own; takes many
    times as long to make.
    """

    IN_PLACE = "in place"
    OPTIMISED = "optimised"


def open_segment(segment: Segment, file: ModelFile, form: Form, threads: int) -> Session:
    """A session on ``threads`` threads that sleep when they have nothing to do.

    Raises InvalidModelError naming model and segment, with ONNX Runtime's reason.
    """
    library = onnxruntime()
    _share_arena()
    options = library.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(file.path.parent)
    )
    names = [tensor.name for tensor in segment.proto.graph.initializer]
    in_place = [name for name in names if name in file.weights]
    held: list[Any] = []
    if form is Form.IN_PLACE:
        options.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
        for name in in_place:
            if (value := _in_place(file.weights[name])) is not None:
                options.add_initializer(name, value)
                held.append(value)
    elif in_place:
        names, contents = list(file.files), list(file.files.values())
        options.add_external_initializers_from_files_in_memory(
            names, contents, [len(content) for content in contents]
        )
    try:
        session = library.InferenceSession(
            segment.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise InvalidModelError(
            f"{file.path}: ONNX Runtime {library.__version__} cannot load segment {segment.index} "
            f"({segment.words}): {error}"
        ) from error
    return Session(session, tuple(held))


@dataclass(frozen=True, slots=True)
class Session:
    """``session``: an ``InferenceSession``; ``held``: the weights that it reads in place."""

    session: Any
    held: tuple[Any, ...]


def _in_place(weight: Weight) -> Any:
    """The weight as ONNX Runtime's value, not copied; None for types of which it needs a copy."""
    if weight.is_packed or not weight.data.size:
        return None
    make = onnxruntime().OrtValue.ortvalue_from_numpy_with_onnx_type
    dtype = dtype_of_element(weight.kind)
    # numpy has no dtype of its own for some (bfloat16, float8): their bits travel as integers
    carrier = dtype if dtype.kind != "V" else np.dtype(f"u{dtype.itemsize}")
    return make(weight.data.view(carrier).reshape(weight.shape), weight.kind)


@functools.cache
def _share_arena() -> None:
    """One arena for all sessions of the process: what one lets go of serves the others."""
    library = onnxruntime()
    memory = library.OrtMemoryInfo(
        "Cpu", library.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, library.OrtMemType.DEFAULT
    )
    # as much as is asked for: a request that got no memory made the next region double in vain
    library.create_and_register_allocator(memory, library.OrtArenaCfg(0, 1, -1, -1))
