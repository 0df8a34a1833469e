"""Segments as the layers of a starting program: loaded by lanes, run by frames, exchanged warm.

A segment stands where a layer does, so that everything above it (lanes, stealing, preemption at
boundaries, the exchange for warm solutions between requests) is one mechanism.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import ModelProto, TensorProto
from torch.utils.dlpack import from_dlpack

from brisk.errors import InvalidModelError, UnsupportedOperatorError
from brisk.execution.joining import JoinedLayers
from brisk.execution.layer_source import LayerSource
from brisk.execution.loaded_layer import LoadedLayer
from brisk.execution.loading import FramePlan
from brisk.execution.timeline import EventKind, Recorder, clock_ns
from brisk.graph.program import Layer, Node, Program, Variable
from brisk.graph.tensors import read_tensor
from brisk.graph.value_types import from_type_proto
from brisk.segments.cutting import constants_of, cut_points
from brisk.segments.extraction import Segment, extract, normalise
from brisk.segments.library import onnxruntime
from brisk.segments.model_file import ModelFile, read_model_file
from brisk.segments.sessions import Form, Session, open_segment
from brisk.solutions.base import (
    Kernel,
    LoadContext,
    Pattern,
    Problem,
    Solution,
    Value,
    Verdict,
    refused,
)

DOMAIN = "brisk"
OPERATOR = "Segment"


class OnnxRuntimeSegment(Solution):
    """What a segment is computed by; no layer of another program can be."""

    name = "onnxruntime"
    pattern = Pattern.REFERENCE

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({(DOMAIN, OPERATOR)})

    def check(self, problem: Problem) -> Verdict:
        return refused("computes segments, which a SegmentSource loads")

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        raise UnsupportedOperatorError("a segment is loaded by its SegmentSource")


ONNX_RUNTIME = OnnxRuntimeSegment()


class SegmentSource(LayerSource):
    """Segments of the model at ``path``: in place first, optimised when there is time."""

    def __init__(self, path: Path, threads: int, recorder: Recorder) -> None:
        """Raises InvalidModelError where the file is no model that can be read."""
        file = read_model_file(path)
        normalise(file.proto)
        spans, typed = cut_points(file.proto, path.stat().st_size)
        defaults = _take_defaults(typed, file)
        self._segments = extract(typed, spans)
        self._file = file
        self._threads = threads
        self._recorder = recorder
        self.frame = FramePlan.of(_program(typed, self._segments, defaults))
        self._opened: dict[int, Session] = {}

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments

    def check(self) -> None:
        """Make every session, since only that tells whether ONNX Runtime takes the model.

        Raises InvalidModelError naming the segment that it does not take.
        """
        for index in range(len(self._segments)):
            self._opened[index] = self._open_first(index)

    def load(self, index: int, lane: str, stolen: bool) -> LoadedLayer:
        started_ns = clock_ns()
        session = self._opened.pop(index, None) or self._open_first(index)
        layer = self._layer(index, session)
        self._recorder.add(lane, EventKind.CREATE, index, started_ns, stolen)
        return layer

    def _open_first(self, index: int) -> Session:
        try:
            return self._open(index, Form.IN_PLACE)
        except InvalidModelError:  # some operators are computed by what optimising makes of them
            return self._open(index, Form.OPTIMISED)

    def solution_names(self) -> list[str]:
        return [ONNX_RUNTIME.name for _ in self._segments]

    def has_skipped(self) -> bool:
        return True

    def warm_layers(self) -> list[int]:
        return list(range(len(self._segments)))

    def load_warm(self, index: int) -> LoadedLayer:
        return self._layer(index, self._open(index, Form.OPTIMISED))

    def join(
        self, layers: Sequence[LoadedLayer], cuts: Collection[int] = ()
    ) -> JoinedLayers | None:
        """Small operators are joined by ONNX Runtime itself."""
        return None

    def _open(self, index: int, form: Form) -> Session:
        return open_segment(self._segments[index], self._file, form, self._threads)

    def _layer(self, index: int, session: Session) -> LoadedLayer:
        segment, frame = self._segments[index], self.frame
        return LoadedLayer(
            layer=frame.program.layers[index],
            solution=ONNX_RUNTIME,
            kernel=SegmentKernel(session, segment, is_whole=len(self._segments) == 1),
            reads=tuple(frame.slots[name] for name in segment.inputs),
            writes=tuple(frame.slots[name] for name in segment.outputs),
            dead=tuple(frame.slots[name] for name in segment.dead if name in frame.slots),
        )


class SegmentKernel:
    """A session as a kernel: inputs are views of what it is given, outputs are its own memory.

    Values between segments are ONNX Runtime's own, never copied. A model of one segment goes by
    numpy, whose calls are shorter but copy the outputs.
    """

    __slots__ = ("_goes_by_numpy", "_held", "_inputs", "_make", "_outputs", "_run", "_run_arrays")

    def __init__(self, opened: Session, segment: Segment, *, is_whole: bool) -> None:
        """``is_whole``: it is the model's only segment."""
        session = opened.session
        self._held = opened.held
        self._inputs = segment.inputs
        self._outputs = list(segment.outputs)
        self._run = session._sess.run_with_ort_values
        self._run_arrays = session._sess.run
        self._make = onnxruntime().capi.onnxruntime_pybind11_state.OrtValue.from_dlpack
        kinds = [each.type for each in (*session.get_inputs(), *session.get_outputs())]
        self._goes_by_numpy = "tensor(string)" in kinds or (
            is_whole and "tensor(bfloat16)" not in kinds
        )

    def __call__(self, *values: Value) -> Sequence[Value]:
        if self._goes_by_numpy:
            feeds = dict(zip(self._inputs, map(_as_array, values), strict=True))
            return [_as_value(array) for array in self._run_arrays(self._outputs, feeds, None)]
        given = dict(zip(self._inputs, map(self._given, values), strict=True))
        return [_taken(value) for value in self._run(given, self._outputs, None)]

    def _given(self, value: Value) -> Any:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"a segment takes tensors, not {type(value).__name__}")
        is_bool = value.dtype is torch.bool
        return self._make(
            (value.view(torch.uint8) if is_bool else value).contiguous().__dlpack__(), is_bool
        )


def _as_array(value: Value) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, np.ndarray):
        return value
    raise TypeError(f"a segment takes tensors, not {type(value).__name__}")


def _as_value(array: Any) -> Value:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"a segment gives tensors, not {type(array).__name__}")
    return array if array.dtype == object else torch.from_numpy(array)


def _taken(value: Any) -> Value:
    kind = value.data_type()
    if kind == "tensor(string)":
        return np.asarray(value.numpy(), object)
    if not value.is_tensor():
        raise TypeError(f"a segment gives tensors, not {kind}")
    tensor = from_dlpack(value.to_dlpack())
    return tensor.view(torch.bool) if kind == "tensor(bool)" else tensor


def _take_defaults(model: ModelProto, file: ModelFile) -> dict[str, np.ndarray]:
    """Defaults of optional inputs, taken out of the model: frames give them where nobody does."""
    graph = model.graph
    optional = {info.name for info in graph.input} & constants_of(graph)
    if not optional:
        return {}
    defaults = {
        tensor.name: np.array(_default(tensor, file))
        for tensor in graph.initializer
        if tensor.name in optional
    }
    kept = [tensor for tensor in graph.initializer if tensor.name not in optional]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return defaults


def _default(tensor: TensorProto, file: ModelFile) -> np.ndarray:
    weight = file.weights.get(tensor.name)
    return read_tensor(tensor, None, None if weight is None else weight.data.data)


def _program(
    model: ModelProto, segments: Sequence[Segment], defaults: Mapping[str, np.ndarray]
) -> Program:
    """The segments as layers of a program without weights."""
    graph = model.graph
    versions = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    layers = tuple(
        Layer(
            index=segment.index,
            main=Node(
                OPERATOR,
                segment.inputs,
                segment.outputs,
                domain=DOMAIN,
                version=versions.get("ai.onnx", 1),
                name=segment.words,
            ),
            nodes=(),
            outputs=segment.outputs,
        )
        for segment in segments
    )
    return Program(
        name=graph.name,
        inputs=tuple(
            Variable(info.name, from_type_proto(info.type), info.name in defaults)
            for info in graph.input
        ),
        outputs=tuple(Variable(info.name, from_type_proto(info.type)) for info in graph.output),
        layers=layers,
        weights=dict(defaults),
        types={info.name: from_type_proto(info.type) for info in (*graph.input, *graph.output)},
        last_use=tuple(segment.dead for segment in segments),
    )
