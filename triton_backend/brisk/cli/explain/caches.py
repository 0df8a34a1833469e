"""What ``brisk explain`` says of a model's learned caches: where in its segments exits stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from brisk.cli.explain.text import count_text
from brisk.errors import InvalidModelError

if TYPE_CHECKING:
    from brisk.segments.plan import SegmentPlan


@dataclass(frozen=True, slots=True)
class Exits:
    """``places``: by segments done, the names of the exits there. ``failure``: why the caches
    are not used; None where they are, or where there are none.
    """

    places: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    failure: str | None = None

    def at(self, segment: int) -> tuple[str, ...]:
        """Names of those behind this segment."""
        return self.places.get(segment + 1, ())


def exits_of(file: Path, plan: SegmentPlan) -> Exits:
    """Of the caches that the model would be served with."""
    from brisk.exits.files.artefact import digest_of, read_cascade
    from brisk.exits.files.container import DamagedFileError
    from brisk.exits.files.versions import latest
    from brisk.exits.model_graph import read_graph
    from brisk.exits.serving.frame import find_places

    path = latest(file)
    if not path.exists():
        return Exits()
    try:
        cascade = read_cascade(path, digest_of(file))
        places = find_places(plan, read_graph(file), cascade)
    except (DamagedFileError, InvalidModelError, OSError) as error:
        return Exits(failure=str(error))
    if places is None or not cascade.levels:
        return Exits(failure="its exits are not values of the model; train again")
    return Exits(
        {
            done: tuple(cascade.exits[index].name for index, _ in found)
            for done, found in places.exits.items()
        }
    )


def caches_text(file: Path, exits: Exits) -> str:
    """Whether there are any, and where their exits stand."""
    from brisk.exits.files.versions import latest

    path = latest(file)
    if not path.exists():
        return "none"
    if exits.failure is not None:
        return f"{path} is ignored: {exits.failure}"
    if not exits.places:
        return f"{path} has no exit in use"
    count = sum(map(len, exits.places.values()))
    behind = ", ".join(str(done - 1) for done in sorted(exits.places))
    segments = "segment" if len(exits.places) == 1 else "segments"
    return f"{count_text(count, 'exit')} behind {segments} {behind}, of {path}"
