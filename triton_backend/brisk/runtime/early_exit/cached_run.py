"""One network's run with learned caches: of a request, or of a node of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brisk.runtime.models.session import Session
from brisk.segments.values import Value

if TYPE_CHECKING:
    from brisk.exits.serving.frame import ExitingFrame


@dataclass(frozen=True, slots=True, eq=False)
class CachedRun:
    """``labels``: model and version that its answers are counted under.

    ``inputs`` may be the frontend's memory, which goes with the last answer of the run.
    """

    session: Session
    frame: ExitingFrame
    inputs: Mapping[str, Value]
    labels: tuple[str, str]
