"""The prepared form of a model: its segments as ONNX Runtime optimized them, in one mapped file.

A start parses no model and infers no shapes: the plan is in the manifest, weights lie in the
layout of their kernels and are computed with in place. The thread that opens a segment compares
its bytes with their checksums first, which takes 4 ms for 100 MB in addition to the page faults
that computing would have; so no answer is ever made of damaged weights.

Segments of equal content, in whatever models of a process, run in one session: a network served
under several names or classes, or a backbone that two models have in common, is held once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from brisk.artefacts import content, room
from brisk.artefacts.container import Container
from brisk.errors import ArtefactError, InvalidModelError
from brisk.graph.files.element_types import dtype_of_element
from brisk.segments.onnxruntime import (
    FOLDER_ENTRY,
    NOWHERE,
    OrtSession,
    Weight,
    onnxruntime,
    running,
    session_options,
    shared,
    value_in_place,
)
from brisk.segments.prepared.manifest import KeptSegment, fingerprint, read_plan
from brisk.segments.sharing import open_structure, read_structure, with_weights
from brisk.segments.source import FileBytes, RowTable, SegmentPlan, Source
from brisk.tuning import SessionTuning

if TYPE_CHECKING:
    from brisk.segments.prepared.siblings import Sibling  # with onnx


class _Manner(NamedTuple):
    """The options that a session is opened with: see ``open_saved``.

    Equal segments share a session. The first one decides whether it has a memory pattern, since
    two measurements of that may differ.
    """

    packs: bool
    spins_long: bool


_COLD = _Manner(packs=False, spins_long=False)


def prepared_name(digests: Mapping[str, str], taps: Collection[str] = ()) -> str:
    """Return the name of a model's prepared form. ``digests``: those of the model's files."""
    text = "\n".join(f"{name}: {value}" for name, value in sorted(fingerprint(taps).items()))
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{content.digest_of_all(digests)}-{key}{room.ARTEFACT}"


def find_prepared(
    model: Path, taps: Collection[str] = (), environment: Mapping[str, str] = os.environ
) -> Path | None:
    """Return the file that may be the model's prepared form on this machine; None: there is none.

    It is found by the content of the model's files, wherever they lie. ``environment``: of the
    process that made the file.
    """
    try:
        folder = content.find_folder(model, environment)
        if folder is None:
            return None
        digests = content.digests_in(folder, model, environment)
    except (OSError, InvalidModelError):
        return None  # opening the model reports what is wrong
    file = folder / prepared_name(digests, taps)
    return file if file.is_file() else None


class PreparedModel(Source):
    """The model at ``model`` as prepared in ``path``. Thread-safe."""

    origin = "artefact"

    def __init__(
        self,
        path: Path,
        model: Path,
        threads: int,
        taps: Collection[str] = (),
        tuning: SessionTuning = SessionTuning(),  # noqa: B008  # immutable
        environment: Mapping[str, str] = os.environ,
        *,
        shares: bool = True,
        sibling: Sibling | None = None,
    ) -> None:
        """Read the manifest; no weight is touched. ``environment``: of the process that made the
        file. ``shares``: whether segments run in sessions of their structure (``sharing``).
        ``sibling``: the model, if the form is that of another one of its structure.

        Raises ArtefactError if the file cannot be used: damaged, of another model, of other cuts,
        of another version of ONNX Runtime or processor.
        """
        try:
            self.container = Container(path, environment)
        except OSError as error:
            raise ArtefactError(f"{path}: cannot be opened: {error}") from error
        self.path = path
        self._environment = environment
        room.note_use(path)
        self.weight_bytes = self.container.memory.nbytes
        self._threads = threads
        self._tuning = tuning
        self._shares = shares and tuning.shares_structures
        self._sibling = sibling
        if sibling is not None:
            self.origin, self.wants_artefact = "sibling", True
        self._deferred: set[int] = set()
        """Segments with tables that may not be here yet."""
        self._structures: dict[int, OrtSession] = {}
        """The sessions of structures, kept for other models even if this one runs in its own."""
        self.lookups = {"found": 0, "made": 0}
        """The number of look-ups of sessions of structures, by result (PASK, III-C)."""
        try:
            self.plan, self.kept = self._read(self.container.content, model, taps)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ArtefactError(f"{path}: no prepared model: {error!r}") from error

    @property
    def is_own(self) -> bool:
        """Whether the form is the model's, not that of a sibling."""
        return self._sibling is None

    def reads(self, index: int) -> Sequence[FileBytes]:
        segment = self.kept[index]
        structure = segment.structure
        if self._sibling is not None:
            return () if structure is None else self._sibling.reads(structure)
        blobs = {segment.proto, *segment.blobs}
        if structure is not None:
            blobs.update((structure.proto, *structure.blobs))
        places = map(self.container.place, sorted(blobs))
        return [FileBytes(self.path, place.offset, place.size) for place in places]

    def defer_tables(self, index: int, wait: Callable[[], None]) -> Sequence[RowTable]:
        """See ``Source``. Tables are not verified, so the form must be vouched for."""
        segment = self.kept[index]
        if not self.is_own:
            return ()
        inputs = {variable.name for variable in self.plan.inputs}
        tables = []
        for weight, blob in zip(segment.weights, segment.blobs, strict=True):
            ids = dict(segment.tables).get(weight.name)
            if ids in inputs and segment.blobs.count(blob) == 1:
                place = self.container.place(blob)
                where = FileBytes(self.path, place.offset, place.size)
                tables.append(RowTable(ids, where, weight.shape[0]))
                self.container.vouch_for(blob)
                self._deferred.add(index)
        return tables

    def open(self, index: int) -> OrtSession:
        """Open the session that starts cheapest. Raises ArtefactError if its bytes are damaged."""
        warm = self._warm_manner(index) if self.is_own else None
        if index in self._deferred:  # not shared: others would not wait for its rows
            return self._open(index, warm if warm and self.kept[index].needs_packing else _COLD)
        if warm is not None and self.kept[index].needs_packing:
            return self._shared(index, warm)
        if warm is not None:
            if (found := running(self._key(index, warm))) is not None:
                return found
            key = None if warm.packs else self._structure_key(index, warm)
            if key is not None and running(key) is not None and self._is_lasting(index):
                return self._shared(index, warm)
        key = self._structure_key(index, _COLD)
        if key is not None and running(key) is not None:
            return self._in_structure(index, _COLD)
        return self._shared(index, _COLD)

    def open_warm(self, index: int) -> OrtSession | None:
        manner = self._manner_behind_start(index)
        if manner is None:
            return None
        is_in_own = manner.packs or not self._is_lasting(index)
        if is_in_own and index not in self._structures:
            self._structure(index, _COLD)  # for the next model of the structure
        return self._shared(index, manner)

    def open_for_a_row(self, index: int) -> OrtSession:
        """Open the session that runs fastest for a single row. Raises ArtefactError like
        ``open``."""
        if not self.kept[index].packs_for_a_row:
            return self._shared(index, _COLD)
        manner = self._manner_behind_start(index)
        return self.open(index) if manner is None else self._shared(index, manner)

    def _manner_behind_start(self, index: int) -> _Manner | None:
        """Return the options of the session that takes over from the first; None: none does."""
        is_other = self.is_own and not self.kept[index].needs_packing
        return self._warm_manner(index) if is_other else None

    def _warm_manner(self, index: int) -> _Manner | None:
        """Return the options of the warm session; None: the first one runs as fast, as packing
        gains nothing and no threads could spin longer."""
        segment = self.kept[index]
        is_alone = len(self.plan.segments) == 1
        if not segment.packs and (self._threads == 1 or is_alone):
            return None if self._is_lasting(index) else _COLD
        return _Manner(segment.packs, spins_long=not is_alone)

    def _is_lasting(self, index: int) -> bool:
        """Whether the segment, if its weights are not packed, goes on in what it starts in."""
        structure = self.kept[index].structure
        return structure is None or structure.is_lasting or not (self._shares and self.is_own)

    def _key(self, index: int, manner: _Manner) -> tuple[object, ...]:
        return self.kept[index].digest, self._threads, self._tuning, manner

    def _structure_key(self, index: int, manner: _Manner) -> tuple[object, ...] | None:
        """Return the key of the structure's session; None: the segment shares none."""
        structure = self.kept[index].structure
        if structure is None or not self._shares:
            return None
        return structure.digest, "structure", self._threads, self._tuning, manner

    def _structure(self, index: int, manner: _Manner) -> OrtSession | None:
        """Return the session of the segment's structure, shared or new; None: it has none."""
        segment, key = self.kept[index], self._structure_key(index, manner)
        structure = segment.structure
        if structure is None or key is None:
            return None

        def make() -> OrtSession:
            proto = self.container.copied(structure.proto)
            with self._blamed(index):
                return open_structure(
                    proto,
                    self._threads,
                    self._tuning,
                    spins_long=manner.spins_long,
                    uses_memory_pattern=segment.gains_by_pattern,
                )

        session = running(key)
        self.lookups["made" if session is None else "found"] += 1
        session = self._structures[index] = session or shared(key, make)
        return session

    def _shared(self, index: int, manner: _Manner) -> OrtSession:
        """Return the session that the segment goes on in."""
        if self._sibling is not None:
            return self._in_structure(index, manner)
        is_own = manner.packs or not self._is_lasting(index)
        if not is_own and self._structure_key(index, manner) is not None:
            return self._in_structure(index, manner)
        session = shared(self._key(index, manner), lambda: self._open(index, manner))
        if manner.packs:
            for blob in self.kept[index].blobs:  # it computes on copies of most of them
                self.container.drop_pages(blob)
        return session

    def _in_structure(self, index: int, manner: _Manner) -> OrtSession:
        """Return the structure's session with this model's weights. Raises ArtefactError."""
        structure, kept = self._structure(index, manner), self.kept[index].structure
        if structure is None or kept is None:
            raise ArtefactError(f"{self.path}: segment {index} cannot be shared")
        weights = kept.weights
        if self._sibling is None:
            self.container.verify_all(kept.blobs, self._threads)
        else:
            weights = self._sibling.weights(kept, self.container)
        return with_weights(
            structure,
            self.plan.segments[index],
            kept.inputs,
            kept.outputs,
            weights,
            shrinks_arena=self._tuning.shrinks_arena,
        )

    def check(self) -> None:
        """Compare every byte with its checksum. Raises ArtefactError."""
        for number in range(len(self.container)):
            self.container.compare(number)

    def _open(self, index: int, manner: _Manner) -> OrtSession:
        segment, container = self.kept[index], self.container
        proto = container.copied(segment.proto)
        container.verify_all(segment.blobs, self._threads)
        with self._blamed(index):
            return open_saved(
                proto,
                segment.weights,
                self._threads,
                self._tuning,
                **manner._asdict(),
                uses_memory_pattern=segment.gains_by_pattern,
            )

    @contextlib.contextmanager
    def _blamed(self, index: int) -> Iterator[None]:
        """Open a context in which whatever ONNX Runtime raises becomes an ArtefactError."""
        try:
            yield
        except Exception as error:
            raise ArtefactError(
                f"{self.path}: ONNX Runtime cannot load segment {index} "
                f"({self.plan.segments[index].words}): {error}"
            ) from error

    def _read(
        self, record: Any, model: Path, taps: Collection[str]
    ) -> tuple[SegmentPlan, tuple[KeptSegment, ...]]:
        own, expected = record["fingerprint"], fingerprint(taps)
        if own != expected:
            differing = [name for name in expected if own.get(name) != expected[name]]
            raise ArtefactError(f"{self.path}: made elsewhere, its {', '.join(differing)} differ")
        if self._sibling is not None:
            self.made_of = self._sibling.check(self.path, record)
        else:
            identity = dict(record["identity"])
            self.made_of = content.check_content(self.path, model, identity, self._environment)
        plan = read_plan(record["plan"], self.container)
        kept = tuple(self._segment(each) for each in record["sessions"])
        if len(kept) != len(plan.segments):
            raise ArtefactError(
                f"{self.path}: {len(plan.segments)} segments, {len(kept)} sessions"
            )
        return plan, kept

    def _segment(self, record: Mapping[str, Any]) -> KeptSegment:
        self.container.place(record["proto"])
        gain, batch_gain, pattern_gain = (
            None if record[key] is None else float(record[key])
            for key in ("gain", "batch_gain", "pattern_gain")
        )
        return KeptSegment(
            record["proto"],
            tuple(self._weight(*each) for each in record["weights"]),
            tuple(blob for _, _, _, blob in record["weights"]),
            gain,
            batch_gain,
            pattern_gain,
            bool(record["needs_packing"]),
            str(record["digest"]),
            read_structure(record["structure"], self._weight),
            tuple((str(name), str(ids)) for name, ids in record["tables"]),
        )

    def _weight(self, name: str, kind: int, shape: Sequence[int], blob: int) -> Weight:
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ArtefactError(f"{self.path}: weight '{name}' has shape {shape}")
        if prod(shape) * dtype_of_element(kind).itemsize != self.container.place(blob).size:
            raise ArtefactError(f"{self.path}: weight '{name}' has another size than its blob")
        return Weight(str(name), self.container.view(blob), kind, tuple(shape))


def open_saved(
    proto: bytes,
    weights: Sequence[Weight],
    threads: int,
    tuning: SessionTuning = SessionTuning(),  # noqa: B008  # immutable
    *,
    packs: bool,
    spins_long: bool = False,
    uses_memory_pattern: bool = False,
) -> OrtSession:
    """Open a session of what ``save_optimised`` made, which computes on the weights in place.

    ``packs``: whether weights are copied into the layouts that are fastest for matrix products.
    """
    library = onnxruntime()
    options = session_options(
        tuning,
        threads,
        is_warm=packs,
        spins_long=spins_long,
        uses_memory_pattern=uses_memory_pattern,
    )
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(FOLDER_ENTRY, NOWHERE[0])
    held = tuple(map(value_in_place, weights))
    for each, value in zip(weights, held, strict=True):
        options.add_initializer(each.name, value)
    session = library.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    return OrtSession(session, held, tuning.shrinks_arena)
