"""How far learning from the traffic alone is for a model, as a file that anybody may read."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from brisk.exits.files.versions import private_folder, samples_folder


class Stage(str, Enum):
    """``UNFIT``: the model cannot have early answers, whatever comes. ``REFUSED``: with what came
    nothing pays, or nothing is proved."""

    COLLECTING = "collecting"
    LEARNING = "learning"
    SERVED = "served"
    REFUSED = "refused"
    UNFIT = "unfit"


class Aim(NamedTuple):
    """What traffic alone is to teach: early answers of which a share of ``accuracy`` are the
    model's own. ``tolerance``: which values count as such (``brisk.settings.tolerance``); empty:
    the model has classes.
    """

    accuracy: float
    tolerance: str = ""


class WayTried(NamedTuple):
    """A way to early answers alone, as samples tell before anything is proved: the share of
    inputs that it answers ``early``, and by what factor the mean is shorter then.
    """

    name: str
    early: float
    speed_up: float

    def __str__(self) -> str:
        return f"{self.name} {self.speed_up:.2f} × ({self.early:.0%} early)"


MOST_WAYS = 6
"""That a record names, the best first."""


@dataclass(frozen=True, slots=True)
class LearningRecord:
    """``accuracy``, ``tolerance``: what is to be promised (``Aim``). ``wanted``: samples with
    which it is tried, or tried again; 0: not again. ``samples``: of the last try, after so many
    ``tries``. ``speed_up``: of the mean, measured on samples; 0 where there is none. ``reason``:
    in words why not. ``ways``: what the last try has found, the best of each kind.
    """

    stage: Stage
    accuracy: float
    wanted: int = 0
    samples: int = 0
    tries: int = 0
    speed_up: float = 0.0
    reason: str = ""
    tolerance: str = ""
    ways: tuple[WayTried, ...] = ()

    @property
    def aim(self) -> Aim:
        return Aim(self.accuracy, self.tolerance)

    @property
    def collects(self) -> bool:
        """Whether samples are wanted."""
        return self.stage in (Stage.COLLECTING, Stage.REFUSED) and self.wanted > 0

    def words(self, rows: int) -> str:
        """For people; ``rows``: samples that are there."""
        if self.stage is Stage.COLLECTING:
            return f"collecting: {min(rows, self.wanted):,} of {self.wanted:,} samples"
        if self.stage is Stage.LEARNING:
            return f"learning from {self.samples:,} samples"
        if self.stage is Stage.SERVED:
            more = f"; again with {self.wanted:,}, {rows:,} are there" if self.wanted else ""
            return f"learned from {self.samples:,} samples: likely {self.speed_up:.2f} ×{more}"
        again = f"; again with {self.wanted:,} samples, {rows:,} are there" if self.wanted else ""
        told = "not for this model" if self.stage is Stage.UNFIT else "does not pay"
        return f"{told}: {self.reason}{again}"


def record_file(model_file: Path, environment: Mapping[str, str] = os.environ) -> Path:
    return private_folder(model_file, environment) / "learning.json"


def read_record(
    model_file: Path, environment: Mapping[str, str] = os.environ
) -> LearningRecord | None:
    """None where there is none that can be read."""
    try:
        found = json.loads(record_file(model_file, environment).read_text())
        return LearningRecord(
            stage=Stage(found["stage"]),
            accuracy=float(found["accuracy"]),
            wanted=int(found["wanted"]),
            samples=int(found["samples"]),
            tries=int(found["tries"]),
            speed_up=float(found["speed_up"]),
            reason=str(found["reason"]),
            tolerance=str(found.get("tolerance", "")),
            ways=tuple(WayTried(str(a), float(b), float(c)) for a, b, c in found.get("ways", ())),
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write_record(model_file: Path, record: LearningRecord) -> None:
    """A reader sees the old one or the new one. Raises OSError."""
    target = record_file(model_file)
    unfinished = target.with_suffix(".unfinished")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(record), file)
    unfinished.replace(target)


def collected(model_file: Path, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rows of the samples that are there, as the files' names say, and their bytes."""
    rows = size = 0
    for file in samples_folder(model_file, environment).glob("*.npz"):
        number = file.stem.rpartition("-")[2]
        with contextlib.suppress(OSError):
            size += file.stat().st_size
            rows += int(number) if file.stem.count("-") > 1 and number.isdecimal() else 0
    return rows, size


HELD_OUT = 0.25
"""Share of samples, the newest ones, that prove and do nothing else."""

SPARE = 2.5
"""Samples that prove, over those that do without a single mistake."""

FEWEST = 1000


def rows_wanted(accuracy: float, confidence: float) -> int:
    """With so many samples learning is tried."""
    proving = math.log(1 - confidence) / math.log(accuracy)
    return max(FEWEST, math.ceil(SPARE * proving / HELD_OUT))
