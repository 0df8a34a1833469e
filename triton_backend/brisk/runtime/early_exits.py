"""A session's learned caches: read last, looked up in one lane for all sessions.

``SessionCaches.read`` runs in the upkeep thread, everything else in the worker's main thread;
what is served changes by one assignment, between two frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from brisk.execution import LoadedProgram
from brisk.exits.artefact import caches_file, digest_of, read_cascade
from brisk.exits.audit import CascadeAudit
from brisk.exits.cascade import Cascade
from brisk.exits.container import DamagedFileError
from brisk.exits.serving import Answer, ExitingFrame, LookUpLane, Places, find_places
from brisk.runtime.saying import say
from brisk.solutions.base import Value
from brisk.telemetry.incidents import INCIDENTS
from brisk.wire.records import ExitStatus


@dataclass(slots=True)
class Tally:
    """Of runs that are finished: rows that could have been answered early, and were, by exit."""

    rows: int = 0
    answered: Counter[int] = field(default_factory=Counter)

    def note(self, rows: int, early: Sequence[Answer]) -> None:
        """Of ``rows`` rows, these were answered early."""
        self.rows += rows
        for answer in early:
            if answer.exit_index is not None:
                self.answered[answer.exit_index] += len(answer.rows)


@dataclass(frozen=True, slots=True, eq=False)
class ServedCaches:
    """One version of a model's caches, where they sit in its program, and what came of them.

    ``audit`` and ``tally`` are the worker's main thread's.
    """

    cascade: Cascade
    places: Places
    audit: CascadeAudit
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def of(cls, cascade: Cascade, loaded: LoadedProgram) -> ServedCaches:
        """Raises DamagedFileError where ``cascade`` is of another program."""
        places = find_places(loaded, cascade)
        if places is None or not cascade.levels:
            raise DamagedFileError("its exits are not boundaries of the program; train again")
        return cls(cascade, places, CascadeAudit(cascade.levels[0].accuracy))

    def exits(self) -> tuple[ExitStatus, ...]:
        """What each exit has come to."""
        found = []
        for index, exit_ in enumerate(self.cascade.exits):
            audit = self.audit.exits.get(index)
            audited, agreed = (0, 0) if audit is None else (audit.audited, audit.agreed)
            is_off = index in self.audit.switched_off
            answered = self.tally.answered[index]
            found.append(ExitStatus(exit_.name, answered, audited, agreed, is_off))
        return tuple(found)


class SessionCaches:
    """The caches of one session; ``served`` is None until they are there, and without any."""

    def __init__(self, model_file: Path) -> None:
        self._model_file = model_file
        self.served: ServedCaches | None = None

    def read(self, loaded: LoadedProgram) -> ServedCaches | None:
        """Read and check the file, if there is one; what does not fit is said and ignored."""
        path = caches_file(self._model_file)
        if not path.exists():
            return None
        try:
            if loaded.device.type != "cpu":
                raise DamagedFileError("caches are looked up on the CPU only")
            return ServedCaches.of(read_cascade(path, digest_of(self._model_file)), loaded)
        except (DamagedFileError, OSError) as error:
            text = f"caches '{path}' are ignored: {error}"
            say(text)
            INCIDENTS.note(text)
            return None

    def start(
        self,
        loaded: LoadedProgram,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None,
    ) -> ExitingFrame | None:
        """A frame that may answer early; None where nothing keeps ``agreement``.

        Raises InvalidRequestError where the inputs do not fit the model.
        """
        served = self.served
        level = served.cascade.level(agreement) if served is not None else None
        if served is None or level is None or not _are_rows(inputs):
            return None
        return ExitingFrame(
            loaded,
            served.cascade,
            served.places,
            level,
            None if served.cascade.synchronous else look_up_lane(),
            inputs,
            requested,
            served.audit.switched_off,
        )


@cache
def look_up_lane() -> LookUpLane:
    """The worker's one lane, begun with the first look-up."""
    return LookUpLane()


def _are_rows(inputs: Mapping[str, Value]) -> bool:
    """Whether every input is a tensor with the same number of rows, one at least."""
    counts = {
        len(value) if isinstance(value, torch.Tensor) and value.dim() else 0
        for value in inputs.values()
    }
    return len(counts) == 1 and 0 not in counts
