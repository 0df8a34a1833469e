"""The record of learning from the traffic alone for a model: a file that any process may read."""

from __future__ import annotations

import contextlib
import json
import math
import os
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from brisk.exits.files.versions import private_folder, samples_folder
from brisk.paths import Stamp, stamp_of, version_folder
from brisk.settings import DEFAULT_SAMPLES_MIB


class Stage(str, Enum):
    """The stage of learning. ``UNFIT``: the model cannot have early answers. ``REFUSED``: with the
    samples so far nothing saves time, or nothing is proved."""

    COLLECTING = "collecting"
    LEARNING = "learning"
    SERVED = "served"
    REFUSED = "refused"
    UNFIT = "unfit"


class Aim(NamedTuple):
    """The aim of learning from traffic alone: a share ``accuracy`` of answers is the model's."""

    accuracy: float
    tolerance: str = ""
    """Which values count as the model's (``brisk.settings.tolerance``); empty: it has classes."""
    smaller: str = ""
    """The name of the file of a smaller model that may answer; empty: there is none."""
    smaller_stamp: str = ""
    """``stamp_text`` of that file: with another one learning begins anew."""
    model_stamp: str = ""
    """``stamp_text`` of the model's own file: with another one learning begins anew."""
    needs_classes: bool = False
    """Whether the model itself has to say that its outputs are classes, since nobody else does."""

    @classmethod
    def of(
        cls,
        model_file: Path,
        accuracy: float,
        tolerance: str,
        smaller: str,
        *,
        needs_classes: bool = False,
    ) -> Aim:
        """Return the aim for a model, with the present stamps of the files."""
        stamp = _present(smaller_file(model_file, smaller)) if smaller else ""
        return cls(accuracy, tolerance, smaller, stamp, _present(model_file), needs_classes)

    def is_present(self, model_file: Path) -> bool:
        """Whether the files of the aim are still in their places."""
        return self == self.at_present(model_file)

    def at_present(self, model_file: Path) -> Aim:
        """Return the aim with the present stamps of the files."""
        said = self.accuracy, self.tolerance, self.smaller
        return Aim.of(model_file, *said, needs_classes=self.needs_classes)

    def __str__(self) -> str:
        words = f"{self.accuracy:.1%}", self.tolerance, self.smaller
        by_server = "by BRISK_ACCURACY" if self.needs_classes else ""
        return " ".join(filter(None, (*words, by_server)))


def stamp_text(stamp: Stamp) -> str:
    """Return the size and time of modification of a file, which a copy of its folder keeps."""
    size, modified_ns, *_ = stamp
    return f"{size} {modified_ns}"


def _present(file: Path) -> str:
    """Return ``stamp_text`` of a file; empty if there is none."""
    try:
        return stamp_text(stamp_of(file.stat()))
    except OSError:
        return ""


def smaller_file(model_file: Path, name: str) -> Path:
    """Return the path of a model's smaller one, by its name in the version's directory."""
    return version_folder(model_file) / name


class WayTried(NamedTuple):
    """A single way to early answers, as estimated from samples before anything is proved: the
    share of inputs that it answers ``early``, and the factor by which the mean latency is shorter.
    """

    name: str
    early: float
    speed_up: float

    def __str__(self) -> str:
        return f"{self.name} {self.speed_up:.2f} × ({self.early:.0%} early)"


MOST_COPIES = 16

MOST_WAYS = 6
"""The most ways that a record names, the best first."""


@dataclass(frozen=True, slots=True)
class LearningRecord:
    """A model's progress in learning."""

    stage: Stage
    aim: Aim
    """Its ``model_stamp`` is empty in a record of a version of Brisk that did not note it."""
    wanted: int = 0
    """The number of samples with which learning is tried, or tried again; 0: not again."""
    samples: int = 0
    """The number of samples of the last try."""
    tries: int = 0
    speed_up: float = 0.0
    """The factor by which the mean latency is shorter, measured on samples; 0: there is none."""
    reason: str = ""
    """The reason why there are no early answers."""
    ways: tuple[WayTried, ...] = ()
    """The ways that the last try found, the best of each kind."""
    model_digest: str = ""
    """``digest_of`` the model; empty: it is not known."""
    copies: tuple[str, ...] = ()
    """The stamps of files of the same bytes, which had the model's place before, or have it in
    another container that shares the cache."""

    def is_for(self, aim: Aim) -> bool:
        """Whether the record is of ``aim``. Without a ``model_stamp`` it counts as of any file of
        the model."""
        is_same = self.aim._replace(model_stamp=aim.model_stamp) == aim
        return is_same and not self.is_of_another_file(aim)

    def is_of_another_file(self, aim: Aim) -> bool:
        """Whether it says that it is of another file of the model than ``aim`` is."""
        known = (self.aim.model_stamp, *self.copies)
        return known[0] != "" and aim.model_stamp not in known

    def of_copy(self, aim: Aim) -> LearningRecord:
        """Return the record as one of the file of ``aim``, too, which has the same bytes."""
        stamp = self.aim.model_stamp
        if stamp and not self.is_of_another_file(aim):
            return self
        copies = (*self.copies, stamp) if stamp else ()
        present = self.aim._replace(model_stamp=aim.model_stamp)
        return replace(self, aim=present, copies=copies[-MOST_COPIES:])

    @property
    def collects(self) -> bool:
        """Whether samples are wanted, if they find room."""
        return self.stage in (Stage.COLLECTING, Stage.REFUSED) and self.wanted > 0

    @property
    def is_final(self) -> bool:
        """Whether nothing is ever learned of this model for this aim: samples are of no use."""
        return self.stage is Stage.UNFIT or (self.stage is Stage.REFUSED and not self.wanted)

    def takes_samples(self, rows: int, size: int, most_bytes: int) -> bool:
        """Whether more samples are of use: not where ``most_bytes`` are full of fewer than those
        with which learning is tried."""
        room = _room(rows, size, most_bytes)
        is_enough = room >= self.wanted or self._takes_fewer(room)
        return self.collects and (is_enough or rows <= FULL * room)

    def words(self, rows: int) -> str:
        """Return the record as text for people; ``rows``: the samples that are stored."""
        if self.stage is Stage.COLLECTING:
            return f"collecting: {min(rows, self.wanted):,} of {self.wanted:,} samples"
        if self.stage is Stage.LEARNING:
            return f"learning from {self.samples:,} samples"
        if self.stage is Stage.SERVED:
            more = f"; again with {self.wanted:,}, {rows:,} are there" if self.wanted else ""
            return f"learned from {self.samples:,} samples: likely {self.speed_up:.2f} ×{more}"
        again = f"; again with {self.wanted:,} samples, {rows:,} are there" if self.wanted else ""
        verdict = "not for this model" if self.stage is Stage.UNFIT else "does not pay"
        return f"{verdict}: {self.reason}{again}"

    def progress(self, rows: int, size: int, most_bytes: int) -> str:
        """Return ``words``, and what samples take of disk if they may not take that much.

        That comes first if nothing is learned for want of it. ``size``: the bytes of the ``rows``
        that are stored; ``most_bytes``: see ``samples_limit_bytes``.
        """
        room = _room(rows, size, most_bytes)
        if not self.collects or room >= self.wanted:
            return self.words(rows)
        needed = size / rows * self.wanted / 2**20
        shortage = (
            f"BRISK_SAMPLES_MIB keeps {room:,.0f} samples at most: set it to {needed:.0f} to keep "
            f"{self.wanted:,}"
        )
        parts = (self.words(rows), shortage)
        return "; ".join(parts if self._takes_fewer(room) else reversed(parts))

    def is_due(self, rows: int, size: int, most_bytes: int) -> bool:
        """Whether learning is tried with the samples that are stored."""
        return self.wanted > 0 and (rows >= self.wanted or self.is_full(rows, size, most_bytes))

    def is_full(self, rows: int, size: int, most_bytes: int) -> bool:
        """Whether ``most_bytes`` leave no room for more samples, and those stored will do."""
        room = _room(rows, size, most_bytes)
        return room < self.wanted and self._takes_fewer(room) and rows > FULL * room

    def _takes_fewer(self, samples: float) -> bool:
        """Whether learning is tried with fewer samples than are wanted, if no more find room: the
        first time only, and if those that fill ``FULL`` of it are enough for a proof."""
        proving = FULL * samples * HELD_OUT
        return self.tries == 0 and proving >= _fewest_proving(self.aim.accuracy, TRY_CONFIDENCE)


def _room(rows: int, size: int, most_bytes: int) -> float:
    """Return how many samples of the present mean size fit into ``most_bytes``."""
    return most_bytes / (size / rows) if rows and size else float("inf")


def samples_limit_bytes() -> int:
    """Return the most bytes of a model's samples in a runtime with this process's environment."""
    with contextlib.suppress(ValueError, OverflowError):  # the runtime refuses such a text
        return int(float(os.environ.get("BRISK_SAMPLES_MIB") or DEFAULT_SAMPLES_MIB) * 2**20)
    return DEFAULT_SAMPLES_MIB * 2**20


OTHER_FILES = 3
"""The exit status of a learning process that finds other files than those that were loaded."""

BUSY = 4
"""The exit status of a learning process while another one, perhaps of another container that
shares the cache, learns for the same model."""


def record_file(model_file: Path) -> Path:
    return private_folder(model_file) / "learning.json"


LOCK = "learning.lock"
"""The file in a private folder that the process that learns locks."""


def lock_file(model_file: Path) -> Path:
    """Return the file that the process that learns for a model locks."""
    return private_folder(model_file) / LOCK


def read_record(model_file: Path) -> LearningRecord | None:
    """Return the record; None if there is none that can be read."""
    try:
        found = json.loads(record_file(model_file).read_text())
        return LearningRecord(
            stage=Stage(found["stage"]),
            aim=Aim(
                accuracy=float(found["accuracy"]),
                tolerance=str(found.get("tolerance", "")),
                smaller=str(found.get("smaller", "")),
                smaller_stamp=str(found.get("smaller_stamp", "")),
                model_stamp=str(found.get("model_stamp", "")),
                needs_classes=bool(found.get("needs_classes", False)),
            ),
            wanted=int(found["wanted"]),
            samples=int(found["samples"]),
            tries=int(found["tries"]),
            speed_up=float(found["speed_up"]),
            reason=str(found["reason"]),
            ways=tuple(WayTried(str(a), float(b), float(c)) for a, b, c in found.get("ways", ())),
            model_digest=str(found.get("model_digest", "")),
            copies=tuple(map(str, found.get("copies", ()))),
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write_record(model_file: Path, record: LearningRecord) -> None:
    """Write the record: a reader sees the old one or the new one. Raises OSError."""
    target = record_file(model_file)
    unfinished = target.with_suffix(".unfinished")
    written = asdict(record)
    written.update(written.pop("aim")._asdict())
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(written, file)
    unfinished.replace(target)


def collected(model_file: Path) -> tuple[int, int]:
    """Return the rows of the stored samples, by the files' names, and their bytes."""
    rows = size = 0
    with contextlib.suppress(OSError), os.scandir(samples_folder(model_file)) as files:
        for file in files:
            stem, suffix = os.path.splitext(file.name)
            number = stem.rpartition("-")[2]
            with contextlib.suppress(OSError):
                if suffix == ".npz":
                    size += file.stat().st_size
                    rows += int(number) if stem.count("-") > 1 and number.isdecimal() else 0
    return rows, size


FULL = 0.9
"""The share of the room for samples from which on it counts as full: the oldest make place for new
ones."""

HELD_OUT = 0.25
"""The share of samples, the newest ones, that only prove."""

SPARE = 2.5
"""The number of samples that prove, as a multiple of the fewest that prove without a mistake."""

FEWEST = 1000

CONFIDENCE = 0.95
"""The confidence with which learning from the traffic alone proves its promise, all tries
together."""

MOST_TRIES = 3

TRY_CONFIDENCE = 1 - (1 - CONFIDENCE) / MOST_TRIES
"""The confidence of each try: what any of them proves is served, so they share the error."""


def rows_wanted(accuracy: float, confidence: float) -> int:
    """Return the number of samples with which learning is tried."""
    return max(FEWEST, math.ceil(SPARE * _fewest_proving(accuracy, confidence) / HELD_OUT))


def _fewest_proving(accuracy: float, confidence: float) -> float:
    """Return how many samples prove ``accuracy`` if every answer is right."""
    return math.log(1 - confidence) / math.log(accuracy)
