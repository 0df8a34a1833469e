"""A session that ONNX Runtime computes, segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from brisk.errors import ArtefactError
from brisk.exits.taps import tapped_values
from brisk.exits.versions import latest
from brisk.runtime.early_exits import SessionCaches
from brisk.runtime.session import Frame, Session
from brisk.scheduling.threads import ThreadChoice
from brisk.segments.frame import SegmentFrame
from brisk.segments.sources import BareModel
from brisk.segments.starting import StartingSegments, start_segments, without_collections
from brisk.segments.table import GiveWay
from brisk.segments.timeline import EventKind, Recorder, clock_ns
from brisk.segments.values import Value


class SegmentSession(Session):
    def __init__(
        self, path: Path, starting: StartingSegments, threads: int, give_way: GiveWay | None
    ) -> None:
        plan = starting.program.plan
        count = len(plan.segments)
        self.path = path
        self.starting = starting
        self.table = starting.table
        self.recorder = starting.recorder
        self.inputs, self.outputs = plan.inputs, plan.outputs
        self.threads = ThreadChoice(threads, is_fixed=True)
        self.caches = SessionCaches()
        self.load_ns = 0
        self.summary = f"{count} segment{'s'[: count != 1]} by ONNX Runtime"
        self._lanes = starting.start_lanes(threads, give_way)

    @property
    def origin(self) -> str:
        return self.starting.source.origin

    @property
    def wants_artefact(self) -> bool:
        return False

    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
    ) -> Frame:
        early = self.caches.start(inputs, requested, agreement)
        return early or SegmentFrame(self.starting.program, inputs, requested)

    def threads_for(self, chosen: int) -> int:
        """A session of ONNX Runtime has its threads from its making."""
        return chosen

    def starts_with_substitutes(self) -> bool:
        return True

    def load_warm(self, may_go_on: Callable[[], bool]) -> bool:
        return self.starting.load_warm(may_go_on)


def load_segment_session(
    path: Path,
    threads: int,
    reject: Callable[[ArtefactError], None] | None,
    give_way: GiveWay | None,
) -> SegmentSession:
    """As ``load_session``. Raises InvalidModelError where ONNX Runtime does not take the model."""
    recorder = Recorder()
    started_ns = clock_ns()
    with without_collections():
        source = BareModel(path, threads, tapped_values(latest(path)))
        source.check()
        starting = start_segments(source, threads, recorder)
    recorder.add("parse", EventKind.PARSE, None, started_ns)
    return SegmentSession(path, starting, threads, give_way)
