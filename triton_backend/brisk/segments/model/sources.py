"""A model's segments from its own file, read in place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from onnx import GraphProto, ModelProto, ValueInfoProto

from brisk.artefacts import content
from brisk.errors import ArtefactError, BriskError, InvalidModelError
from brisk.graph.files.proto import from_type_proto
from brisk.graph.program import Variable
from brisk.segments.model.cutting import cut_points
from brisk.segments.model.extraction import Segment, extract, normalise
from brisk.segments.model.graph_names import (
    WITH_BODIES,
    constants_of,
    names_of,
    operators_of,
)
from brisk.segments.model.model_file import (
    ModelFile,
    is_given,
    read_model_file,
    take_defaults,
    unread_file,
)
from brisk.segments.model.opening import (
    CHANGED_BY_OPTIMISING,
    CPU,
    Form,
    Provider,
    open_segment,
    operators_in,
)
from brisk.segments.model.row_tables import row_tables
from brisk.segments.model.structure import Structure, structure_of
from brisk.segments.onnxruntime import OrtSession
from brisk.segments.sharing import open_structure, with_weights
from brisk.segments.source import FileBytes, RowTable, SegmentPlan, Source
from brisk.tuning import SessionTuning

MOST_AT_ONCE = 64, 1 << 19
"""The most nodes and bytes of weights of a segment that starts with its warm session whatever the
others do: making that takes less time than the first run loses without it."""

MOST_OF_ALL_AT_ONCE = 512, 16 << 20
"""The most of each segment of a model that starts with its warm sessions. Making these takes some
10 to 40 ms longer, on all processors; the first runs are faster, and none is held up by an
exchange of sessions. Larger weights take longer to be laid out than a first answer may wait, and
one segment that has to be exchanged spoils what the others gain.
"""


class BareModel(Source):
    """The segments of the model at ``path``: large weights in place first, optimized later."""

    origin = "model"

    def __init__(
        self,
        path: Path,
        threads: int,
        taps: Collection[str] = (),
        tuning: SessionTuning = SessionTuning(),  # noqa: B008  # immutable
        *,
        takes_optional: bool = False,
        longest_ns: float | None = None,
        provider: Provider = CPU,
        is_awaited: bool = False,
        is_here: bool = False,
        keeps_graph: bool = False,
        file: ModelFile | None = None,
    ) -> None:
        """Read and cut the model at ``path``.

        ``taps``: values after which the model is cut, so that a frame can show them. ``tuning``:
        of all its sessions. ``takes_optional``: whether requests may give inputs that have a
        default; else those are constants, which are folded and fused as others are. ``longest_ns``
        as in ``cut_points``. ``provider``: ONNX Runtime's; the processor computes what it does not
        support. ``is_awaited``: a request waits, so segments start with warm sessions if that
        costs a first answer little. ``is_here``: all bytes of its files are. ``keeps_graph``: no
        segment does, whatever that changes: a worker has crashed in one. ``file``: the model's, if
        it has been read already.

        Raises InvalidModelError if the file is no model that can be read.
        """
        file = read_model_file(path) if file is None else file
        normalise(file.proto)
        self.operators = operators_in(file)
        is_changed = not self.operators.isdisjoint(CHANGED_BY_OPTIMISING)
        # ONNX Runtime fuses nothing with inputs of a request, which changes its answers
        takes_optional |= is_changed and file.unread is None
        optional = () if takes_optional else _fix_optional(file.proto.graph)
        self.file = file
        self.made_of = file.stamps
        self._threads = threads
        self._tuning = tuning
        self._provider = provider
        self._opened: dict[int, OrtSession] = {}
        self._warm: set[int] = set()
        """The segments whose sessions are warm from the start."""
        self._ahead: dict[int, tuple[Structure, OrtSession]] = {}
        """A segment's graph with weights as inputs, and a session made of it ahead, by segment."""
        self._deferred: dict[int, Callable[[], None]] = {}
        """The functions that wait for a segment's tables, by segment."""
        self._is_awaited = is_awaited
        self._is_here = is_here
        self._keeps_graph = keeps_graph
        if keeps_graph:
            self.remark = "not optimised as it starts, since workers have died of that"
        if keeps_graph and is_changed:
            self.remark += (
                "; its quantised parts answer otherwise than in ONNX Runtime until it is"
            )
        self.wants_artefact = file.unread is None  # else it is optimised already
        size = self.own_stamp[0]  # of what was read: there may be another file by now
        self.weight_bytes = sum(data.nbytes for data in file.files.values()) or size
        self.segments, self.plan = _cut(file, size, longest_ns, taps, optional)

    def check(self) -> None:
        """Make every session, since only that shows whether ONNX Runtime accepts the model.

        Raises InvalidModelError naming the segment that it refuses, or a file that was written to
        since it was mapped.
        """
        indices = range(len(self.segments))
        if min(len(indices), self._threads) == 1:
            self._opened.update((index, self._open_first(index)) for index in indices)
        else:
            with ThreadPoolExecutor(min(len(indices), self._threads)) as pool:
                self._opened.update(zip(indices, pool.map(self._open_first, indices), strict=True))
        self.check_not_written()

    def check_not_written(self) -> None:
        """Raise InvalidModelError if a file was written to since it was mapped."""
        if written := content.written_since(self.file.path, self.made_of):
            raise InvalidModelError(
                f"{written} was written to while it was loaded; expected a file that is whole "
                "before its load, or another one that is renamed into its place"
            )

    def reads(self, index: int) -> Sequence[FileBytes]:
        graph = self.segments[index].proto.graph
        return self.file.bytes_of([tensor.name for tensor in graph.initializer])

    def defer_tables(self, index: int, wait: Callable[[], None]) -> Sequence[RowTable]:
        segment = self.segments[index]
        if self.file.unread is not None or self._first_form(segment) is not Form.IN_PLACE:
            return ()
        inputs = {variable.name for variable in self.plan.inputs}
        tables = []
        for table in row_tables(segment.proto.graph, inputs):
            for place in self.file.bytes_of([table.name]):
                tables.append(RowTable(table.ids, place, table.rows))
                self._deferred[index] = wait
        return tables

    def make_ahead(self, index: int) -> None:
        """Open a session of the segment's graph as it is, with the weights as inputs: it reads
        none."""
        segment, weights = self.segments[index], self.file.weights
        if self.file.unread is not None or self._provider != CPU or index in self._deferred:
            return
        if self._first_form(segment) is not Form.IN_PLACE:
            return
        graph = segment.proto.graph
        held = [weights[each.name] for each in graph.initializer if each.name in weights]
        with contextlib.suppress(Exception):  # ONNX Runtime's have no common class
            structure = structure_of(segment.proto.SerializeToString(), held, segment.spec)
            if structure is not None:
                session = open_structure(structure.proto, self._threads, self._tuning)
                self._ahead[index] = structure, session

    def open(self, index: int) -> OrtSession:
        return self._opened.pop(index, None) or self._made(index) or self._open_first(index)

    def _made(self, index: int) -> OrtSession | None:
        """Return the session that was made ahead, with its weights; None: there is none."""
        structure, session = self._ahead.pop(index, (None, None))
        if structure is None or session is None:
            return None
        with contextlib.suppress(ArtefactError):  # weights that it cannot be given
            return with_weights(
                session,
                self.segments[index].spec,
                structure.inputs,
                structure.outputs,
                structure.weights,
                shrinks_arena=self._tuning.shrinks_arena,
            )
        return None

    def open_warm(self, index: int) -> OrtSession | None:
        return None if index in self._warm else self._open(index, [Form.OPTIMISED])[0]

    def close(self) -> None:
        """Release the mapped file, of whose weights warm sessions have copies."""
        self._ahead.clear()
        self._deferred.clear()
        self.segments, self.file = (), ModelFile(self.file.path, ModelProto(), {}, {}, {})

    def _open_first(self, index: int) -> OrtSession:
        first = self._first_form(self.segments[index])
        # some operators can be computed only as optimizing rewrites them
        forms = list(dict.fromkeys((first, Form.OPTIMISED)))
        if (wait := self._deferred.get(index)) is not None:
            try:
                return self._open(index, [first])[0]
            except InvalidModelError:
                wait()  # so does every further opening: this one may fail, or another overtake it
        session, form = self._open(index, forms)
        if form is Form.OPTIMISED:
            self._warm.add(index)
        return session

    def _first_form(self, segment: Segment) -> Form:
        """Return the form whose answers come soonest, not the first alone (NNV12, 3.1)."""
        if self._keeps_graph:
            return Form.IN_PLACE
        if not self.operators.isdisjoint(CHANGED_BY_OPTIMISING):
            operators = self.operators
            if len(self.segments) > 1:
                operators = operators_of(segment.proto)
            if not operators.isdisjoint(CHANGED_BY_OPTIMISING):
                return Form.OPTIMISED
        if not self._is_awaited or self.file.unread is not None:
            return Form.IN_PLACE
        is_small = self._is_within(segment, MOST_AT_ONCE)
        return Form.OPTIMISED if is_small or self._starts_warm else Form.IN_PLACE

    @cached_property
    def _starts_warm(self) -> bool:
        """Whether all segments start with warm sessions. Bytes that are on their way would be
        waited for: an optimised session is made when the last of them is here."""
        segments = self.segments
        return self._is_here and all(
            self._is_within(each, MOST_OF_ALL_AT_ONCE) for each in segments
        )

    def _is_within(self, segment: Segment, most: tuple[int, int]) -> bool:
        graph, weights = segment.proto.graph, self.file.weights
        held = [weights[each.name] for each in graph.initializer if each.name in weights]
        most_nodes, most_bytes = most
        if len(graph.node) > most_nodes or sum(each.data.nbytes for each in held) > most_bytes:
            return False
        # bodies have nodes and weights that are not counted here
        return WITH_BODIES.isdisjoint(node.op_type for node in graph.node)

    def _open(self, index: int, forms: Sequence[Form]) -> tuple[OrtSession, Form]:
        return open_segment(
            self.segments[index],
            self.file,
            forms,
            self._threads,
            self._tuning,
            is_one_of_several=len(self.segments) > 1,
            provider=self._provider,
        )


def checked_model(
    path: Path,
    threads: int,
    taps: Collection[str] = (),
    tuning: SessionTuning = SessionTuning(),  # noqa: B008  # immutable
    *,
    file: ModelFile | None = None,
    is_awaited: bool = False,
    keeps_graph: bool = False,
) -> BareModel:
    """Return the model at ``path`` with its sessions made: see ``BareModel``.

    If it cannot be cut, or ONNX Runtime refuses its segments, return one session of the unchanged
    file, if ONNX Runtime accepts that; its ``remark`` says so. Raises like ``BareModel`` and its
    ``check``.
    """
    first: Exception
    try:
        model = BareModel(
            path,
            threads,
            taps,
            tuning,
            file=file,
            is_awaited=is_awaited,
            is_here=True,
            keeps_graph=keeps_graph,
        )
    except BriskError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever cannot be done with its graph
        first = error
    else:
        try:
            model.check()
            return model
        except InvalidModelError as error:
            if model.file.unread is not None or content.written_since(path, model.made_of):
                raise
            first = error
    try:
        whole = uncut_model(path, threads, tuning)
        whole.check()
    except BriskError:
        raise first from None
    reason = " ".join(f"{type(first).__name__}: {first}".split())
    whole.remark = f"one session of the unchanged file, since it cannot be cut ({reason:.300})"
    return whole


def uncut_model(
    path: Path, threads: int, tuning: SessionTuning, *, takes_optional: bool = False
) -> BareModel:
    """Return the model at ``path`` as one segment, the unchanged file, whose session is not made
    yet. Raises InvalidModelError like ``unread_file``."""
    file = unread_file(path)
    model = BareModel(path, threads, (), tuning, file=file, takes_optional=takes_optional)
    model.is_uncut = True
    return model


def _cut(
    file: ModelFile,
    size_bytes: int,
    longest_ns: float | None,
    taps: Collection[str],
    fixed: tuple[Variable, ...],
) -> tuple[Sequence[Segment], SegmentPlan]:
    """Return the model's segments and their plan; ``fixed``: as of ``SegmentPlan``.

    Defaults of optional inputs are taken out of ``file.proto``.
    """
    names = names_of(file.proto.graph)
    spans, typed = cut_points(file.proto, size_bytes, longest_ns, taps, names)
    defaults = take_defaults(file)
    segments = extract(file.proto, spans, typed, None if defaults else names)
    constants = constants_of(file.proto.graph)
    plan = SegmentPlan(
        name=typed.graph.name,
        inputs=tuple(
            _variable(info, info.name in defaults)
            for info in typed.graph.input
            if info.name not in constants
        ),
        outputs=tuple(map(_variable, typed.graph.output)),
        segments=tuple(each.spec for each in segments),
        defaults=defaults,
        fixed=fixed,
    )
    return segments, plan


def _variable(info: ValueInfoProto, is_optional: bool = False) -> Variable:
    return Variable(info.name, from_type_proto(info.type), is_optional)


def _fix_optional(graph: GraphProto) -> tuple[Variable, ...]:
    """Remove the inputs that have a default, which are constants from now on. Return those that a
    request could give."""
    constants = constants_of(graph)
    infos = [info for info in graph.input if info.name in constants]
    if not infos:
        return ()
    remaining = [info for info in graph.input if info.name not in constants]
    variables = tuple(_variable(info, True) for info in infos if is_given(info))
    del graph.input[:]
    graph.input.extend(remaining)
    return variables
