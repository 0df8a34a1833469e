"""A model's own file, and a prepared form whose damaged parts are replaced from it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from brisk.artefacts.skeletons import may_be_noted
from brisk.errors import ArtefactError, InvalidModelError, UnavailableError, is_shortage
from brisk.runtime.sessions.attempts import exchange_attempt
from brisk.segments.onnxruntime import OrtSession
from brisk.segments.prepared.form import PreparedModel
from brisk.tuning import SessionTuning

if TYPE_CHECKING:
    from brisk.copies.local import LocalCopy

    # these import onnx, which a prepared form does without
    from brisk.segments.model.model_file import ModelFile
    from brisk.segments.model.sources import BareModel
    from brisk.segments.prepared.siblings import Sibling


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A model's own file."""

    path: Path
    threads: int
    taps: Collection[str]
    """The values after which segments end."""
    tuning: SessionTuning
    copy: LocalCopy | None = None
    """The copy that the file belongs to, if the model lies elsewhere and may still be arriving."""

    def cut_as_published(self) -> OwnFile:
        """Return the file with the published cuts of a model that lies elsewhere, or itself."""
        if self.copy is None or not self.copy.manifest.cuts:
            return self
        return replace(self, taps=frozenset(self.taps).union(self.copy.manifest.cuts))

    @property
    def is_arriving(self) -> bool:
        return self.copy is not None and not self.copy.is_whole

    @property
    def may_have_siblings(self) -> bool:
        tuning = self.tuning
        is_plain = not self.taps and tuning.keeps_answers and tuning.shares_structures
        return is_plain and may_be_noted()

    def open(self, longest_ns: float | None = None) -> BareModel:
        """Return the file's ``BareModel``. Raises UnavailableError if it is still arriving."""
        from brisk.segments.model.sources import BareModel

        self._check_whole()
        return BareModel(self.path, self.threads, self.taps, self.tuning, longest_ns=longest_ns)

    def open_taking_optional(self, *, is_uncut: bool) -> BareModel:
        """Return the model, cut unless ``is_uncut``, for requests that give inputs which have a
        default; no session of it is made yet. Raises UnavailableError if the file is still
        arriving."""
        from brisk.segments.model.sources import BareModel, uncut_model

        self._check_whole()
        path, threads, tuning = self.path, self.threads, self.tuning
        if is_uncut:
            return uncut_model(path, threads, tuning, takes_optional=True)
        return BareModel(path, threads, self.taps, tuning, takes_optional=True)

    def _check_whole(self) -> None:
        if self.is_arriving:
            raise UnavailableError(f"{self.path}: the model's own file is still arriving")

    def checked(self, read: ModelFile | None) -> BareModel:
        """Call ``checked_model``. If a load ended a worker, the graph is kept as it is, of a model
        that answers otherwise then only if that happened MOST_DEATHS times."""
        from brisk.segments.model.model_file import read_model_file
        from brisk.segments.model.opening import is_changed_by_optimising

        with exchange_attempt(self.path, self.tuning, most_deaths=1) as may_be_tried:
            if may_be_tried:
                return self._checked(read, is_awaited=True, keeps_graph=False)
        read = read_model_file(self.path) if read is None else read
        if not is_changed_by_optimising(read):
            return self._checked(read, is_awaited=False, keeps_graph=True)
        with exchange_attempt(self.path, self.tuning, keeps_deaths=True) as may_be_tried:
            return self._checked(read, is_awaited=False, keeps_graph=not may_be_tried)

    def _checked(
        self, read: ModelFile | None, *, is_awaited: bool, keeps_graph: bool
    ) -> BareModel:
        from brisk.segments.model.sources import checked_model

        return checked_model(
            self.path,
            self.threads,
            self.taps,
            self.tuning,
            file=read,
            is_awaited=is_awaited,
            keeps_graph=keeps_graph,
        )


class MendedModel(PreparedModel):
    """A prepared model whose damaged parts are replaced from the model's own file."""

    def __init__(
        self,
        path: Path,
        file: OwnFile,
        reject: Callable[[ArtefactError], None],
        sibling: Sibling | None = None,
    ) -> None:
        super().__init__(path, file.path, file.threads, file.taps, file.tuning, sibling=sibling)
        self._file = file
        self._reject = reject
        self._lock = threading.Lock()
        self._bare: BareModel | None = None

    def open(self, index: int) -> OrtSession:
        try:
            return super().open(index)
        except ArtefactError as error:
            return self._mend(error).open(index)

    def open_warm(self, index: int) -> OrtSession | None:
        if self._bare is not None:
            return self._bare.open_warm(index)
        try:
            return super().open_warm(index)
        except ArtefactError as error:
            return self._mend(error).open_warm(index)

    def close(self) -> None:
        if self._bare is not None:
            self._bare.close()

    def _mend(self, error: ArtefactError) -> BareModel:
        """Return the model from its own file. Raises InvalidModelError if the file has changed,
        and ``error`` if it reports no damage but that memory or files were short."""
        if is_shortage(error):
            raise error
        with self._lock:
            if not self.wants_artefact:
                self.wants_artefact = True
                self._reject(error)
            if self._bare is None:
                bare = self._file.open()
                if bare.plan.segments != self.plan.segments:  # the form has fewer segments
                    bare = self._file.open(longest_ns=math.inf)
                if (
                    not self.is_of(self._file.path, bare.made_of)
                    or bare.plan.segments != self.plan.segments
                ):
                    raise InvalidModelError(f"{self._file.path}: not what it was prepared from")
                self._bare = bare
        return self._bare
