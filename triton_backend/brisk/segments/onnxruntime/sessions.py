"""ONNX Runtime's sessions of segments: one that starts at once, one that is fast for long."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

from onnx import ModelProto

from brisk.errors import BriskError, InvalidModelError
from brisk.segments.model.extraction import Segment
from brisk.segments.model.model_file import ModelFile
from brisk.segments.onnxruntime.library import onnxruntime
from brisk.segments.onnxruntime.options import run_options, session_options
from brisk.segments.onnxruntime.refusals import blamed, reason_of
from brisk.segments.onnxruntime.session import OrtSession, value_in_place
from brisk.tuning import SessionTuning

Provider: TypeAlias = "str | tuple[str, Mapping[str, str]]"
"""Who of ONNX Runtime computes, with its options."""

CPU: Provider = "CPUExecutionProvider"


class Form(Enum):
    """How a session is made (NNV12's candidates for ONNX Runtime).

    ``IN_PLACE``: the graph as it is, computing on the weights of the mapped file. ``OPTIMISED``:
    graph optimised, weights packed as the kernels like them, all in memory of its own; takes many
    times as long to make.
    """

    IN_PLACE = "in place"
    OPTIMISED = "optimised"


def open_segment(
    segment: Segment,
    file: ModelFile,
    form: Form,
    threads: int,
    tuning: SessionTuning = SessionTuning(),  # noqa: B008  # immutable
    *,
    is_one_of_several: bool = False,
    provider: Provider = CPU,
) -> OrtSession:
    """A session on at most ``threads`` threads, as the entry wants it (see ``session_options``).

    Raises InvalidModelError naming model, segment, node, operator and operator set, with ONNX
    Runtime's reason, and InvalidConfigurationError for a tuning that cannot be had.
    """
    try:
        return _open(segment.proto, file, form, threads, tuning, is_one_of_several, provider)
    except BriskError:
        raise
    except Exception as error:
        proto = segment.proto

        def is_taken(part: ModelProto) -> bool:
            try:
                _open(part, file, form, threads, tuning, is_one_of_several, provider)
            except Exception:  # noqa: BLE001  # that is the question
                return False
            return True

        blame = "the file" if file.own_format is not None else blamed(proto, error, is_taken)
        raise InvalidModelError(
            f"{file.path}: ONNX Runtime {onnxruntime().__version__} cannot load segment "
            f"{segment.index} ({segment.words}), to blame: {blame}: {reason_of(error)}"
        ) from error


def _open(
    proto: ModelProto,
    file: ModelFile,
    form: Form,
    threads: int,
    tuning: SessionTuning,
    is_one_of_several: bool,
    provider: Provider,
) -> OrtSession:
    """Raises what ONNX Runtime raises."""
    library = onnxruntime()
    options = session_options(
        tuning,
        threads,
        is_warm=form is Form.OPTIMISED,
        spins_long=is_one_of_several and form is Form.OPTIMISED,
    )
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(file.path.parent)
    )
    names = [tensor.name for tensor in proto.graph.initializer]
    in_place = [name for name in names if name in file.weights]
    held: list[Any] = []
    if form is Form.IN_PLACE:
        for name in in_place:
            if (value := value_in_place(file.weights[name])) is not None:
                options.add_initializer(name, value)
                held.append(value)
    if len(held) < len(in_place):  # ONNX Runtime opens no file itself
        names, contents = list(file.files), list(file.files.values())
        options.add_external_initializers_from_files_in_memory(
            names, contents, [len(content) for content in contents]
        )
    model = proto.SerializeToString() if file.own_format is None else bytes(file.own_format)
    providers = [provider] if provider == CPU else [provider, CPU]
    session = library.InferenceSession(model, options, providers=providers)
    return OrtSession(session, tuple(held), run_options(tuning))
