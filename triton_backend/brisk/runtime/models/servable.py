"""What answers requests: a model's session, or a pipeline of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from brisk.segments.table import LayerTable
from brisk.segments.values import Value

if TYPE_CHECKING:
    from brisk.runtime.early_exit.audits import CachedRun
    from brisk.runtime.early_exit.early_exits import SessionCaches


class Frame(Protocol):
    """One run, computed step by step; ``position``: steps done."""

    can_answer_early: bool

    @property
    def position(self) -> int: ...
    @property
    def upcoming(self) -> str: ...
    @property
    def is_finished(self) -> bool: ...
    def step(self) -> bool: ...
    def results(self) -> dict[str, Value]: ...


class Due(NamedTuple):
    """When a request came and, by its own time-out, is to be answered (monotonic ns)."""

    arrival_ns: int
    deadline_ns: int | None


class Servable(Protocol):
    """``load_ns``: what it took until it could run; ``summary``: one line for the log.

    ``threads``: how many compute a run. ``table``: its parts, ``caches``: its early exits; None
    for a pipeline, whose networks have theirs. ``weight_bytes``: of the files that its weights are
    mapped from. ``has_steady_runs``: whether what a run took predicts the next one.
    """

    @property
    def load_ns(self) -> int: ...
    @property
    def summary(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def has_steady_runs(self) -> bool: ...
    @property
    def table(self) -> LayerTable[Any] | None: ...
    @property
    def caches(self) -> SessionCaches | None: ...

    @property
    def is_loading(self) -> bool:
        """Whether parts of it are still being loaded."""

    @property
    def is_settled(self) -> bool:
        """Whether what computes it stays as it is, and equal inputs have equal answers."""

    def start_run(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        dues: Sequence[Due],
        agreement: float | None,
    ) -> Frame:
        """A frame for the requests of ``dues``. Raises InvalidRequestError where they do not fit.

        ``agreement``: as ``Session.start`` takes it.
        """

    def cached_runs(
        self, frame: Frame, inputs: Mapping[str, Value], labels: tuple[str, str]
    ) -> Sequence[CachedRun]:
        """The runs with learned caches that ``frame`` is, or will have had when it ends.

        ``labels``: model and version that they are counted under.
        """

    def close(self) -> None:
        """Let what loads it end soon; called when nobody needs it any more."""
