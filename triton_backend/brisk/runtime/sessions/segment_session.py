"""A session that ONNX Runtime computes, segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brisk.artefacts import content
from brisk.artefacts.skeletons import may_be_noted
from brisk.errors import ArtefactError, BriskError, InvalidModelError
from brisk.exits.files.versions import taps_of_latest
from brisk.runtime.log import LOGGER
from brisk.runtime.sessions.attempts import MOST_DEATHS, exchange_attempt
from brisk.runtime.sessions.identity import copy_at
from brisk.runtime.sessions.own_file import MendedModel, OwnFile
from brisk.runtime.sessions.session import Due, Frame, Session
from brisk.runtime.sessions.session_caches import SessionCaches
from brisk.segments.frame import SegmentFrame
from brisk.segments.prepared.form import PreparedModel, find_prepared, prepared_name
from brisk.segments.program import SegmentProgram
from brisk.segments.source import Source
from brisk.segments.starting import (
    StartingSegments,
    open_warm_program,
    start_lanes,
    start_segments,
    without_collections,
)
from brisk.segments.table import BeforeEach
from brisk.segments.timeline import EventKind, clock_ns
from brisk.segments.values import Value
from brisk.tuning import SessionTuning

if TYPE_CHECKING:
    from brisk.copies.local import LocalCopy
    from brisk.runtime.arrivals.arrival import ModelArrival

    # these import onnx, which a prepared form does without
    from brisk.segments.model.model_file import ModelFile


_ORIGINS = {
    "model": "the model",
    "artefact": "its artefact",
    "sibling": "the model and another one's artefact",
}


class SegmentSession(Session):
    starts_with_substitutes = True

    def __init__(
        self,
        file: OwnFile,
        starting: StartingSegments,
        before_each: BeforeEach | None,
        arrival: ModelArrival | None = None,
    ) -> None:
        plan = starting.program.plan
        count = len(plan.segments)
        source = starting.source
        self.path = file.path
        self.starting = starting
        self.table = starting.table
        self.inputs, self.outputs = (*plan.inputs, *plan.fixed), plan.outputs
        self._fixed = frozenset(variable.name for variable in plan.fixed)
        self._taking_optional: SegmentProgram | None = None
        self.threads = file.threads
        self.caches = SessionCaches()
        self.load_ns = 0
        self.taps = file.taps
        self.weight_bytes = source.weight_bytes
        self._file = file
        kind = _ORIGINS[source.origin]
        self.summary = f"{count} segment{'s'[: count != 1]} by ONNX Runtime from {kind}"
        if source.remark:
            self.summary += f": {source.remark}"
        self.arrival = arrival
        if arrival is not None:
            self.summary += ", while it arrives"
            arrival.follow(starting.table)
            before_each = arrival.before_each(before_each)
        start_lanes(starting.table, file.threads, before_each)

    @property
    def origin(self) -> str:
        return self.starting.source.origin

    @property
    def prepared(self) -> Path | None:  # type: ignore[override]
        source = self.starting.source
        return source.path if isinstance(source, PreparedModel) and source.is_own else None

    @property
    def lookups(self) -> Mapping[str, int]:  # type: ignore[override]
        source = self.starting.source
        return source.lookups if isinstance(source, PreparedModel) else {}

    @property
    def shared_segments(self) -> int:
        segments = self.table.current()
        return sum(segment is not None and segment.session.run is not None for segment in segments)

    @property
    def awaits_load(self) -> bool:
        optional = self._taking_optional
        return super().awaits_load or (
            optional is not None and optional.segments.executors_at_work > 0
        )

    @property
    def wants_artefact(self) -> bool:
        return self._file.tuning.keeps_answers and self.starting.source.wants_artefact

    def adopt_prepared(self, may_go_on: Callable[[], bool]) -> bool:
        """Let the prepared form take over (``Session``): the weights are then the mapped file."""
        prepared_form = find_prepared(self.path, self.taps)
        if prepared_form is None:
            return False
        prepared = PreparedModel(
            prepared_form, self.path, self.threads, self.taps, self._file.tuning
        )
        if prepared.plan.segments != self.starting.program.plan.segments:
            return False
        if not self.starting.source.is_of(self.path, prepared.made_of):
            LOGGER.warning(f"{self.path} has changed since it was loaded: load it anew")
            return False
        with exchange_attempt(self.path, self._file.tuning) as may_be_tried:
            moved = self.starting.moved_to(prepared, may_go_on) if may_be_tried else None
        if moved is None:
            return False
        self.starting = moved
        return True

    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
        dues: Sequence[Due] = (),
    ) -> Frame:
        if self._fixed and not self._fixed.isdisjoint(inputs):
            return SegmentFrame(self._program_taking_optional(), inputs, requested)
        if self.caches.were_brought:
            early = self.caches.start(inputs, requested, agreement)
            if early is not None:
                return early
        return SegmentFrame(self.starting.program, inputs, requested)

    def open_narrow(self) -> SegmentProgram | None:
        """Return a one-thread program (see ``Session``) of the same prepared form, with its
        weights in the same forms."""
        source, tuning = self.starting.source, self._file.tuning
        if not isinstance(source, PreparedModel) or not source.is_own or tuning.is_parallel:
            return None
        narrow = PreparedModel(source.path, self.path, 1, self.taps, tuning)
        if [each.digest for each in narrow.kept] != [each.digest for each in source.kept]:
            return None
        # they take as much memory again, which may be what ends the worker
        with exchange_attempt(self.path, tuning, kind="narrow") as may_be_tried:
            return open_warm_program(narrow) if may_be_tried else None

    def start_narrow(self, inputs: Mapping[str, Value], requested: Sequence[str]) -> Frame:
        narrow = self.narrow
        if narrow is None or not self._fixed.isdisjoint(inputs):
            return self.start(inputs, requested)
        return SegmentFrame(narrow, inputs, requested)

    def _program_taking_optional(self) -> SegmentProgram:
        """Return the program for the rare request that gives an optional input; the first such
        request makes it, and its frame the sessions, step by step.

        Raises BriskError."""
        if self._taking_optional is None:
            source = self.starting.source
            bare = self._file.open_taking_optional(is_uncut=source.is_uncut)
            if not source.is_of(self.path, bare.made_of):
                raise InvalidModelError(f"{self.path} has changed since it was loaded")
            self._taking_optional = start_segments(bare).program
        return self._taking_optional

    def load_warm(self, may_go_on: Callable[[], bool]) -> bool:
        """Load warm solutions (``Session``), unless the model's exchanges have crashed workers."""
        if self._fixed and may_go_on():
            content.note_digests(self.path, self.starting.source.made_of)
        with exchange_attempt(self.path, self._file.tuning) as may_be_tried:
            if may_be_tried:
                return self.starting.load_warm(may_go_on)
        LOGGER.warning(
            f"{self.path}: {MOST_DEATHS} workers have died while its sessions were optimised; it "
            "is served as it started"
        )
        return True


def load_segment_session(
    path: Path,
    threads: int,
    reject: Callable[[ArtefactError], None] | None,
    before_each: BeforeEach | None,
    tuning: SessionTuning = SessionTuning(),  # noqa: B008  # immutable
    *,
    takes_learned: bool = True,
) -> SegmentSession:
    """Load a CPU session (``load_session``). Raises InvalidModelError if ONNX Runtime refuses."""
    started_ns = clock_ns()
    with without_collections():
        taps = taps_of_latest(path, takes_learned=takes_learned)
        plain = OwnFile(path, threads, taps, tuning, copy_at(path))
        file = plain.cut_as_published()
        source: Source | None = None
        arrival: ModelArrival | None = None
        if reject is not None and tuning.keeps_answers:
            source = _prepared(file, reject)
            if source is None and file is not plain:  # a form made without the published cuts
                source = _prepared(plain, reject)
                file = file if source is None else plain
        read: ModelFile | None = None
        if source is None and file.copy is not None and file.is_arriving:
            source, arrival = _arriving(file, plain, file.copy, reject)
        elif source is None and reject is not None and plain.may_have_siblings:
            read, source = _of_sibling(plain, reject)
        if source is None and file.copy is not None and reject is not None:
            source, arrival = _form_of_whole(file, file.copy, reject)
        if source is not None and source.origin == "sibling":
            file = plain
        if source is None:
            source = file.checked(read)
        starting = start_segments(source, arrival)
    starting.table.recorder.add("parse", EventKind.PARSE, None, started_ns)
    return SegmentSession(file, starting, before_each, arrival)


def _arriving(
    file: OwnFile,
    plain: OwnFile,
    copy: LocalCopy,
    reject: Callable[[ArtefactError], None] | None,
) -> tuple[Source, ModelArrival]:
    """Return the source that starts a model soonest while its bytes are on their way, and the
    arrival that its segments wait for. ``plain``: the file without the published cuts.

    First choice: the form of another model of the same structure, for which only this model's
    weights are fetched. Second: the model's own prepared form, if one was published for this
    machine and comes sooner than what it saves. Else the weights in the model's file.

    A segment's session is made only when its bytes are here, so requests, not the load, report
    what ONNX Runtime rejects. Raises UnavailableError if nothing can be fetched, and
    InvalidModelError like ``BareModel``.
    """
    from brisk.runtime.arrivals.arrival import ModelArrival
    from brisk.segments.model.sources import BareModel

    arrival = ModelArrival(copy)
    try:
        read: ModelFile | None = None
        source: Source | None = None
        if reject is not None and plain.may_have_siblings:
            read, source = _of_sibling(plain, reject)
        if source is None and reject is not None and file.tuning.keeps_answers:
            taken = arrival.take_form(prepared_name(copy.digests(), file.taps))
            try:
                source = None if taken is None else MendedModel(taken, file, reject)
            except ArtefactError as error:
                LOGGER.warning(f"{error}; its weights are fetched instead")
        if source is None:
            source = BareModel(
                file.path, file.threads, file.taps, file.tuning, file=read, is_awaited=True
            )
        arrival.expect(source)
    except BaseException:
        arrival.close()
        raise
    return source, arrival


def _form_of_whole(
    file: OwnFile, copy: LocalCopy, reject: Callable[[ArtefactError], None]
) -> tuple[Source | None, ModelArrival | None]:
    """Return the source and arrival of a model's prepared form that is still on its way when the
    model's own files are here. A small model's form arrives last, but waiting for it takes less
    time than a start without it. Return (None, None) if no form is on its way."""
    from brisk.copies.connection import is_there
    from brisk.runtime.arrivals.arrival import ModelArrival

    form = prepared_name(copy.digests(), file.taps) if file.tuning.keeps_answers else None
    if form is None or copy.manifest.form_named(form) is None or not is_there():
        return None, None
    try:
        arrival = ModelArrival(copy)
    except (BriskError, OSError):
        return None, None
    try:
        taken = arrival.take_form(form, is_begun=True)
        if taken is not None:
            source = MendedModel(taken, file, reject)
            arrival.expect(source)
            return source, arrival
    except (BriskError, OSError) as error:
        LOGGER.warning(f"{error}; the model's own file is used instead")
    arrival.close()
    return None, None


def _prepared(file: OwnFile, reject: Callable[[ArtefactError], None]) -> MendedModel | None:
    """Return the model's prepared form; None if there is none that can be used."""
    prepared_form = find_prepared(file.path, file.taps)
    try:
        return None if prepared_form is None else MendedModel(prepared_form, file, reject)
    except ArtefactError as error:
        reject(error)
        return None


def _of_sibling(
    file: OwnFile, reject: Callable[[ArtefactError], None]
) -> tuple[ModelFile, MendedModel | None]:
    """Return the model's file, read, and another model's form that it can be started by, if any.

    Raises InvalidModelError like ``BareModel``.
    """
    from brisk.segments.model.model_file import read_model_file
    from brisk.segments.prepared.siblings import find_form, sibling_of

    read = read_model_file(file.path)
    sibling = sibling_of(read, may_be_noted)
    if sibling is None:
        return read, None
    return read, find_form(sibling, lambda path: MendedModel(path, file, reject, sibling))
