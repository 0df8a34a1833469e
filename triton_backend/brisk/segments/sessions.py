"""ONNX Runtime's sessions of segments: one that starts at once, one that is fast for long."""

from __future__ import annotations

import functools
from enum import Enum
from pathlib import Path
from typing import Any

from brisk.errors import InvalidModelError
from brisk.segments.extraction import Segment
from brisk.segments.library import onnxruntime


class Form(Enum):
    """How a session is made (NNV12's candidates for ONNX Runtime).

    ``IN_PLACE``: the graph as it is, weights read where the file has them. ``OPTIMISED``:
    graph optimised, weights packed as the kernels like them; takes many times as long to make.
    """

    IN_PLACE = "in place"
    OPTIMISED = "optimised"


def open_segment(segment: Segment, model: Path, form: Form, threads: int) -> Any:
    """An ``InferenceSession`` on ``threads`` threads that sleep when they have nothing to do.

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
        "session.model_external_initializers_file_folder_path", str(model.parent)
    )
    if form is Form.IN_PLACE:
        options.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        return library.InferenceSession(
            segment.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise InvalidModelError(
            f"{model}: ONNX Runtime {library.__version__} cannot load segment {segment.index} "
            f"({segment.words}): {error}"
        ) from error


@functools.cache
def _share_arena() -> None:
    """One arena for all sessions of the process: what one lets go of serves the others."""
    library = onnxruntime()
    memory = library.OrtMemoryInfo(
        "Cpu", library.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, library.OrtMemType.DEFAULT
    )
    library.create_and_register_allocator(memory, None)
