"""One version of a session's learned caches: its exits' places, and counts of their answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from brisk.errors import InvalidModelError, UnavailableError, may_pass
from brisk.exits.base_model import BaseModel, load_graph
from brisk.exits.cascade import Cascade, Exit
from brisk.exits.cascade_file import digest_of, read_cascade
from brisk.exits.files.container import DamagedFileError
from brisk.exits.files.versions import learned_file
from brisk.exits.guarantee.audit import CascadeAudit
from brisk.exits.guarantee.calibration import upper_bound
from brisk.exits.model_graph import read_graph
from brisk.exits.serving.frame import ExitingFrame, Places, find_places, has_taps
from brisk.protocol.status import ExitStatus
from brisk.runtime.log import LOGGER
from brisk.segments.starting import StartingSegments

REVIEWED_ROWS = 500
"""The rows that an exit is evaluated for between two reviews of its cost and gain."""

REVIEW_CONFIDENCE = 0.999
"""The confidence with which an exit's hit rate must be too low to pay for the exit before it is
switched off."""


@dataclass(slots=True)
class ExitUse:
    """The use of one exit since its last review."""

    evaluated: int = 0
    """The rows that it was evaluated for."""
    answered: int = 0
    spent_ns: int = 0
    """The worker's time for evaluations."""


@dataclass(slots=True, eq=False)
class ServedCaches:
    """Learned caches of a session, with counts of finished runs. The counts belong to the worker's
    main thread."""

    base: BaseModel
    """The model, cut after the exits."""
    cascade: Cascade
    places: Places
    saved: tuple[float, ...]
    """The fraction of the model after each exit."""
    may_be_withdrawn: bool
    """Whether its file goes if its promise is refuted, which has not happened yet: it was learned
    from the traffic."""
    audit: CascadeAudit = field(default_factory=CascadeAudit)
    rows: int = 0
    """The rows that could have been answered early."""
    answered: Counter[int] = field(default_factory=Counter)
    """The rows that were answered early, by exit."""
    uses: dict[int, ExitUse] = field(default_factory=dict)
    costly: dict[int, str] = field(default_factory=dict)
    """The exits that cost more than they save, each with the reason as text."""
    has_failed: bool = False
    """Whether an evaluation has raised an error, which is reported once."""

    @classmethod
    def of(cls, cascade: Cascade, base: BaseModel) -> ServedCaches:
        """Return caches for ``cascade`` that run with ``base``, which is cut after those of the
        cascade's taps that it has.

        Raises DamagedFileError if ``cascade`` is of another model.
        """
        places = find_places(base.plan, base.graph, cascade)
        if places is None or not cascade.levels:
            raise DamagedFileError("its exits are not values of the model; train again")
        saved = tuple(_saved(exit_, cascade.expected.base_s) for exit_ in cascade.exits)
        return cls(base, cascade, places, saved, may_be_withdrawn=cascade.revision > 0)

    def switched_off(self, accuracy: float) -> frozenset[int]:
        """Return the exits that are no longer evaluated for runs that promise ``accuracy``."""
        return self.audit.switched_off(accuracy) | self.costly.keys()

    @property
    def is_off(self) -> bool:
        """Whether all exits are switched off that answered in the proof of the promise."""
        level = self.cascade.levels[0]
        answering = {index for index, each in enumerate(level.count.exits) if each.answered}
        return answering <= self.switched_off(level.accuracy)

    def note(self, frame: ExitingFrame) -> None:
        """Count a run that is finished."""
        self.rows += frame.rows
        for index, evaluated in enumerate(frame.evaluated):
            if evaluated:
                use = self.uses.setdefault(index, ExitUse())
                use.evaluated += evaluated
                use.spent_ns += frame.spent_ns[index]
        for answer in frame.answers:
            if answer.exit_index is not None:
                self.answered[answer.exit_index] += len(answer.rows)
                self.uses[answer.exit_index].answered += len(answer.rows)

    def review(self) -> list[int]:
        """Switch off exits that cost more than they save. Return them.

        What a hit saves was measured when the caches were trained. What an evaluation costs the
        worker's thread is measured in service. The live hit rate is bounded from above, over
        ``REVIEWED_ROWS`` rows, each of which is reviewed once.

        An exit that answered nothing in the proof is served for what it rejects: without it, later
        exits would answer rows that the proof has not counted. It stays on, whatever it costs.
        """
        costly = []
        proof = self.cascade.levels[0].count.exits
        for index, use in self.uses.items():
            if use.evaluated < REVIEWED_ROWS or not proof[index].answered:
                continue
            exit_ = self.cascade.exits[index]
            # with an exit thread, saved_s already lacks the time of the evaluation
            hit_s = exit_.saved_s + (0.0 if self.cascade.synchronous else exit_.evaluation_s)
            cost_s = use.spent_ns / use.evaluated / 1e9
            most = upper_bound(use.answered, use.evaluated, REVIEW_CONFIDENCE)
            if exit_.saved_s > 0 and most * hit_s < cost_s and index not in self.costly:
                self.costly[index] = (
                    f"it has answered {use.answered} of {use.evaluated} rows, saving "
                    f"{hit_s * 1e3:.3f} ms each, for {cost_s * 1e3:.3f} ms an evaluation"
                )
                costly.append(index)
            self.uses[index] = ExitUse()
        return costly

    def exits(self) -> tuple[ExitStatus, ...]:
        """Return the status of each exit."""
        statuses = []
        for index, exit_ in enumerate(self.cascade.exits):
            audits = self.audit.of(index)
            refuted = [audit.accuracy for audit in audits if audit.is_off]
            state = "off: cost" if index in self.costly else "on"
            if refuted:
                is_all = min(refuted) <= self.cascade.levels[0].accuracy
                state = "off: promise" if is_all else f"on below {min(refuted):.1%}"
            audited = sum(audit.audited for audit in audits)
            agreed = sum(audit.agreed for audit in audits)
            statuses.append(ExitStatus(exit_.name, self.answered[index], audited, agreed, state))
        return tuple(statuses)


def _saved(exit_: Exit, base_s: float) -> float:
    """Return the fraction of the model after an exit, less a whole model that stands there."""
    behind = 1 - exit_.point.share
    if exit_.reads_input and base_s > 0:
        behind -= exit_.evaluation_s / base_s
    return max(0.0, behind)


def read_version(
    model: Path,
    path: Path,
    loaded: StartingSegments,
    threads: int,
    present: ServedCaches | None = None,
) -> ServedCaches | None:
    """Return the caches in ``path``; None, with a warning, if they do not fit the model as it was
    ``loaded``. Raises OSError or UnavailableError if they or the model cannot be read, which may
    be for now only.

    The file ``model`` may have been replaced since then: what was proved for another file is not
    served by the loaded one.

    Runs with the caches use the segments of the loaded program, if these end after the exits; else
    those of ``present``, another version. If neither fits, the version gets segments of its own,
    on ``threads`` threads.
    """
    program = loaded.program
    try:
        if not path.exists():
            return None
        if present is not None and loaded.source.is_of(model):
            digest = present.cascade.model_digest  # to read all of a large model takes seconds
        else:
            digest = digest_of(model)
        cascade = read_cascade(path, digest)
        graph = read_graph(model) if present is None else present.base.graph
        if has_taps(program.plan, cascade):
            base = BaseModel(graph, program)
        elif present is not None and has_taps(present.base.plan, cascade):
            base = present.base
        else:
            base = load_graph(graph, threads, cascade.taps)
        version = ServedCaches.of(cascade, base)
        version.may_be_withdrawn |= path == learned_file(model)
        # last: whatever was read above is then of the loaded file
        if not loaded.source.is_of(model):
            raise DamagedFileError(
                f"the model's file '{model}' is another than the loaded one; they are served from "
                "its next load on"
            )
    except FileNotFoundError:
        return None
    except (DamagedFileError, InvalidModelError) as error:
        if may_pass(error):
            raise UnavailableError(str(error)) from error
        LOGGER.warning(f"caches '{path}' are ignored: {error}")
        return None
    return version
