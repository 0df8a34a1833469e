"""Preparing a model: each segment optimised, saved, tried, and put into one published file."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from brisk.artefacts import content, room, store
from brisk.artefacts.container import ContainerDraft
from brisk.errors import ArtefactError, InvalidModelError, UnavailableError
from brisk.paths import Stamp, shown
from brisk.segments.model.sources import BareModel
from brisk.segments.model.structure import Structure, structure_of
from brisk.segments.onnxruntime import Weight
from brisk.segments.prepared import siblings
from brisk.segments.prepared.form import (
    PreparedModel,
    find_prepared,
    open_saved,
    prepared_name,
)
from brisk.segments.prepared.manifest import SEVERAL_ROWS, fingerprint, write_plan
from brisk.segments.prepared.oracle import WholeModel, differing_output
from brisk.segments.prepared.recipes import Recipe, find_recipes
from brisk.segments.prepared.saving import OptimisedSegment, save_optimised
from brisk.segments.prepared.trial import (
    SegmentTrial,
    SharedStructure,
    all_alike,
    check_alike,
    gains,
    has_open_rows,
    try_structure,
)
from brisk.segments.source import SegmentPlan, SegmentSpec

DISK_FACTOR = 4.5
"""The default of the most that a prepared form may take, as a multiple of the model's files: int8
weights that ONNX Runtime computes with as float32 are kept as float32."""

SPARE_BYTES = 16 << 20
"""The bytes that any model's form may take in addition."""

MOST_MADE_BYTES = 16 << 20
"""The most bytes of weights that the start of another model of the structure folds or lays out
anew. With ResNet-50's 94 MB it took 100 ms longer than with a graph that is not optimised, whose
weights are mapped."""


LEAST_SPEED = 0.9
"""The least speed of each structure's session, as a multiple of that of the segment's own, with
which a form starts other models: these run there until they have forms of their own."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """A prepared form that was made."""

    path: Path
    """The published file."""
    plan: SegmentPlan
    seconds: float
    agrees: bool = True
    """Whether another model of its structure was optimised alike, if there is one."""


def is_prepared(model: Path, threads: int, taps: Collection[str] = ()) -> bool:
    """Whether the model has a prepared form for this machine that is intact in every byte."""
    path = find_prepared(model, taps)
    if path is None:
        return False
    try:
        PreparedModel(path, model, threads, taps).check()
    except ArtefactError:
        return False
    return True


def prepare(
    model: Path,
    threads: int,
    taps: Collection[str] = (),
    disk_factor: float = DISK_FACTOR,
) -> Preparation:
    """Make the prepared form of a model for this machine, with one segment at a time in memory.

    ``threads``: to measure with. ``taps``: values after which the model is cut. ``disk_factor``:
    the most that the form may take, as a multiple of the model's files. Raises OSError if nothing
    can be written, UnavailableError if another process prepares the model, InvalidModelError if
    the model cannot be prepared or changes meanwhile.
    """
    started_s = time.monotonic()
    room.sweep_now_and_then()  # what others left may have filled the disk
    directory = content.writable_folder(model)
    try:
        with store.locked(directory) as is_ours:
            if not is_ours:
                raise UnavailableError(f"{directory}: another process prepares this model")
            room.remove_remnants(directory)
            making = _Making(model, threads, taps, directory, disk_factor)
            target = directory / prepared_name(making.identity, taps)
            making = _publish(making, target)
    except room.NoRoomError as error:
        room.note_refused(directory, error.needed_bytes)
        room.tidy(directory)
        raise
    except BaseException:
        room.tidy(directory)
        raise
    room.note_refused(directory, None)
    agrees = True
    if making.skeleton:
        with contextlib.suppress(OSError):  # the form is there; other models do without it
            agrees = siblings.note_form(making.skeleton, target, making.structures)
    seconds = time.monotonic() - started_s
    return Preparation(target, making.source.plan, seconds, agrees)


def _publish(making: _Making, target: Path) -> _Making:
    """Publish the form; return what wrote it: one segment if several do not answer as the
    model."""
    content.note_names(target.parent, making.identity)
    room.check_room(sum(stamp[0] for stamp in making.source.made_of.values()))
    try:
        store.publish(target, making.write)
    except _OtherAnswersError:
        if len(making.source.segments) == 1:
            raise
        making = making.in_one_segment()
        store.publish(target, making.write)
    return making


def _made_bytes(structure: Structure, recipes: Sequence[Recipe | None]) -> int:
    return sum(
        weight.data.nbytes
        for weight, recipe in zip(structure.weights, recipes, strict=False)
        if recipe is not None and not recipe.is_view
    )


class _OtherAnswersError(InvalidModelError):
    """The prepared form answers otherwise than ONNX Runtime's own session of the model."""


class _Tried(NamedTuple):
    """The results of a segment's trial. Gains are None if they are not known."""

    needs_packing: bool
    gains: list[float] | None
    """The gains by packing, and by a memory pattern; None if they were not measured."""
    batch_gain: float | None = None
    """The gain by packing for several rows."""
    shared: SharedStructure | None = None


class _Making:
    """A model that is being prepared: what is known of it, and the writing of its file."""

    def __init__(
        self,
        model: Path,
        threads: int,
        taps: Collection[str],
        directory: Path,
        disk_factor: float,
        longest_ns: float | None = None,
    ) -> None:
        """Begin a preparation. ``longest_ns``: see ``cut_points``.

        Raises InvalidModelError like ``prepare``, also if ``directory`` is another model's."""
        self.model, self._threads, self._taps = model, threads, taps
        self._directory, self._disk_factor = directory, disk_factor
        self.source = BareModel(model, threads, taps, longest_ns=longest_ns)
        digested = content.content_of(model, self.source.made_of)
        self.identity = digested.digests
        self._check_unchanged(digested.stamps)  # what was mapped has these digests
        if self.identity[content.ITSELF] != directory.name:
            raise self._changed()
        self._most_bytes = SPARE_BYTES + int(
            disk_factor * sum(stamp[0] for stamp in self.source.made_of.values())
        )
        self._trial = SegmentTrial(self.source.plan)
        self._several: SegmentTrial | None = None
        if has_open_rows(self.source.plan):
            self._several = SegmentTrial(self.source.plan, SEVERAL_ROWS)
        self._known: dict[bytes, int] = {}
        self._structures: dict[str, int] = {}
        self._made_bytes = 0
        """The bytes of weights that another model's start has to make, not only to show."""
        self.structures: list[dict[str, Any]] = []
        self.skeleton = ""
        """The skeleton of models that may be started by this form; empty: none may."""

    def in_one_segment(self) -> _Making:
        """Return the preparation of the same model, cut as little as can be.

        Raises InvalidModelError if it is another model by now, whose form has another name."""
        arguments = self.model, self._threads, self._taps, self._directory, self._disk_factor
        making = _Making(*arguments, longest_ns=math.inf)
        if making.identity != self.identity:
            raise self._changed()
        return making

    def _check_unchanged(self, stamps: Mapping[str, Stamp]) -> None:
        """Raise InvalidModelError if files with ``stamps`` are not those that were mapped."""
        if not self.source.is_of(self.model, stamps):
            raise self._changed()

    def _changed(self) -> InvalidModelError:
        return InvalidModelError(f"{self.model} has changed while it was prepared")

    def write(self, file: BinaryIO) -> None:
        draft = ContainerDraft(file)
        record: dict[str, Any] = {
            "fingerprint": fingerprint(self._taps),
            "identity": self.identity,
            "model": str(self.model),  # for messages; it is found by its content
            "plan": write_plan(self.source.plan, draft),
        }
        record["sessions"] = [
            self._segment(index, draft) for index in range(len(self.source.plan.segments))
        ]
        structures = self.structures = [each["structure"] for each in record["sessions"]]
        is_plain = not self._taps and not self.source.plan.defaults
        has_all = all(
            each and each["speed"] >= LEAST_SPEED and each["recipes"] is not None
            for each in structures
        )
        if is_plain and has_all and self._made_bytes <= MOST_MADE_BYTES:
            self.skeleton = siblings.skeleton_of(self.model)
        record["skeleton"] = self.skeleton
        self._compare()
        draft.finish(record)
        # Checked before the form is there: a server may map it at once, whoever removes it then.
        self._check_unchanged(content.stamps(self.model, self.identity))
        room.make_room(file.seek(0, os.SEEK_END), file.fileno())

    def _compare(self) -> None:
        """Raise _OtherAnswersError if the segments do not answer as the whole model."""
        if self._trial.values is None:
            return
        whole = WholeModel(self.model, self._threads)
        name = differing_output(whole, self._trial.inputs, self._trial.results())
        if name is not None:
            raise _OtherAnswersError(
                f"{self.model}: in {len(self.source.segments)} segments, output '{shown(name)}' "
                "is not what ONNX Runtime's session of the whole model answers"
            )

    def _segment(self, index: int, draft: ContainerDraft) -> dict[str, Any]:
        segment, file = self.source.segments[index], self.source.file
        with tempfile.TemporaryDirectory(  # of mode 0700
            prefix=room.DRAFT, dir=self._directory, ignore_cleanup_errors=True
        ) as folder:
            saved, tried = self._tried(index, Path(folder))
            gain, pattern_gain = tried.gains or (None, None)
            recipes = None
            if tried.shared is not None and not self._taps:
                structure = tried.shared.structure
                recipes = find_recipes(segment, file, structure, self._threads, Path(folder))
                self._made_bytes += _made_bytes(structure, recipes or ())
            whole = hashlib.blake2b(saved.proto, digest_size=16)
            record = {
                "proto": draft.add(np.frombuffer(saved.proto, np.uint8), is_indexed=True),
                "weights": [self._weight(each, draft, whole) for each in saved.weights],
                "gain": gain,
                "batch_gain": tried.batch_gain,
                "pattern_gain": pattern_gain,
                "needs_packing": tried.needs_packing,
                "tables": [[table.name, table.ids] for table in saved.tables],
                "digest": whole.hexdigest(),
                "structure": self._structure_record(tried.shared, recipes, draft),
            }
        if draft.size > self._most_bytes:
            raise InvalidModelError(
                f"{self.model}: optimised, it takes more than {self._most_bytes} bytes, which is "
                "all that is kept of a model of its size (`brisk prepare --disk` allows more)"
            )
        return record

    def _structure_record(
        self,
        shared: SharedStructure | None,
        recipes: Sequence[Recipe | None] | None,
        draft: ContainerDraft,
    ) -> dict[str, Any] | None:
        if shared is None:
            return None
        structure = shared.structure
        blob = self._structures.get(structure.digest)
        if blob is None:
            graph = np.frombuffer(structure.proto, np.uint8)
            blob = self._structures[structure.digest] = draft.add(graph, is_indexed=True)
        return {
            "proto": blob,
            "digest": structure.digest,
            "inputs": list(structure.inputs),
            "outputs": list(structure.outputs),
            "weights": [self._weight(each, draft) for each in structure.weights],
            "speed": shared.own_s / shared.shared_s,
            "is_lasting": shared.is_lasting,
            "recipes": recipes,
        }

    def _weight(
        self, weight: Weight, draft: ContainerDraft, whole: hashlib.blake2b | None = None
    ) -> list[Any]:
        """Write a weight, once if several segments read it. Return its record. ``whole``: the
        segment's digest."""
        digest = hashlib.blake2b(weight.data.data, digest_size=16).digest()
        if whole is not None:
            whole.update(repr((weight.name, weight.kind, tuple(weight.shape), digest)).encode())
        blob = self._known.get(digest)
        if blob is None:
            blob = self._known[digest] = draft.add(weight.data)
        return [weight.name, weight.kind, list(weight.shape), blob]

    def _tried(self, index: int, folder: Path) -> tuple[OptimisedSegment, _Tried]:
        """Save a segment in ``folder`` and try it. Raises like ``save_optimised``, and
        InvalidModelError if it does not answer as the session that was saved."""
        segment, trial = self.source.segments[index], self._trial
        saved, session = save_optimised(segment, self.source.file, self._threads, folder)
        spec = self.source.plan.segments[index]
        label = f"{self.model}: segment {index} ({spec.words})"
        started_s = time.perf_counter()
        try:
            plain = open_saved(saved.proto, saved.weights, self._threads, packs=False)
        except Exception as error:
            raise InvalidModelError(
                f"{label}: ONNX Runtime cannot load what it saved: {error}"
            ) from error
        made_s = time.perf_counter() - started_s
        outputs = trial.run(spec, session) if index else trial.run_first(spec, session)
        if outputs is None:
            trial.values = None
            return saved, _Tried(saved.needs_packing, None)
        again = trial.run(spec, session)
        check_alike(label, outputs, again, trial.run(spec, plain.session))
        del again, session  # it holds all weights, as the next one will
        arguments = saved.proto, saved.weights, self._threads
        packed = open_saved(*arguments, packs=True)
        packed_outputs = trial.run(spec, packed.session)
        needs_packing = saved.needs_packing or not all_alike(outputs, packed_outputs)
        patterned = open_saved(*arguments, packs=False, uses_memory_pattern=True)
        measured_gains = gains(trial, spec, plain.session, [packed.session, patterned.session])
        structure = structure_of(saved.proto, saved.weights, spec)
        shared = structure and try_structure(
            trial, spec, structure, self._threads, plain.session, made_s, outputs
        )
        served = packed_outputs if needs_packing else outputs
        if served is not None:
            trial.go_on(spec, served)
        batch_gain = self._batch_gain(spec, plain.session, packed.session)
        shared = None if needs_packing else shared
        return saved, _Tried(needs_packing, measured_gains, batch_gain, shared)

    def _batch_gain(self, spec: SegmentSpec, plain: Any, packed: Any) -> float | None:
        """Return the gain by packing for a batch of several rows; None: the model takes none."""
        several = self._several
        if several is None:
            return None
        outputs = several.run(spec, plain) if spec.index else several.run_first(spec, plain)
        measured_gains = None if outputs is None else gains(several, spec, plain, [packed])
        if outputs is None or measured_gains is None:
            self._several = None
            return None
        several.go_on(spec, outputs)
        return measured_gains[0]
