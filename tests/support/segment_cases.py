"""The ONNX project's node cases through segments, beside ONNX Runtime's own session of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from brisk.segments.frame import run_serially
from brisk.segments.model import cutting
from brisk.segments.model.sources import BareModel
from brisk.segments.session import onnxruntime
from brisk.segments.starting import start_segments
from brisk_client.benchmarks.conformance import as_array, compare


@dataclass(frozen=True, slots=True)
class SegmentOutcome:
    """``peer_failure``, ``failure``: of ONNX Runtime by itself and of the segments; None: passed.

    ``goes_over_wire``: whether all inputs and outputs are tensors, which alone Triton serves.
    """

    name: str
    peer_failure: str | None
    failure: str | None
    segments: int
    goes_over_wire: bool

    @property
    def is_worse(self) -> bool:
        """Whether ONNX Runtime passes it and the segments do not."""
        return self.peer_failure is None and self.failure is not None


def run_segment_cases(
    cases: Iterable[Any], folder: Path, *, cut_everywhere: bool
) -> list[SegmentOutcome]:
    """``folder``: where models are written, since segments are read from files."""
    before = cutting.LONGEST_SEGMENT_NS
    cutting.LONGEST_SEGMENT_NS = 0 if cut_everywhere else before
    try:
        return [_run(case, folder / "model.onnx") for case in cases]
    finally:
        cutting.LONGEST_SEGMENT_NS = before


def _run(case: Any, path: Path) -> SegmentOutcome:
    graph = case.model.graph
    infos = (*graph.input, *graph.output)
    goes_over_wire = all(info.type.HasField("tensor_type") for info in infos)
    onnx.save(case.model, path)
    count = 0
    try:
        peer_failure = _judge(case, lambda given: _by_session(path, given))
    except Exception as error:  # noqa: BLE001  # its classes have no common one
        peer_failure = f"{type(error).__name__}: {error}"
    try:
        model = BareModel(path, 1)
        count = len(model.segments)
        starting = start_segments(model)
        starting.table.work("case")
        failure = _judge(case, lambda given: run_serially(starting.program, given))
    except Exception as error:  # noqa: BLE001  # whatever it is, the case has failed
        failure = f"{type(error).__name__}: {error}"
    return SegmentOutcome(case.name, peer_failure, failure, count, goes_over_wire)


def _by_session(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    library = onnxruntime()
    options = library.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, given), strict=True))


def _judge(case: Any, perform: Any) -> str | None:
    graph = case.model.graph
    for inputs, expected in case.data_sets:
        names = [value.name for value in graph.input]
        given = {name: as_array(value) for name, value in zip(names, inputs, strict=False)}
        made = perform(given)
        for value, wanted in zip(graph.output, expected, strict=True):
            actual = made[value.name]
            if isinstance(actual, list):
                actual = [np.asarray(each) for each in actual]
            difference = compare(actual, as_array(wanted), case.rtol, case.atol)
            if difference is not None:
                return f"output '{value.name}': {difference}"
    return None
