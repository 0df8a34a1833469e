"""What becomes of a session after it can run: warm kernels between requests, its learned caches,
then its artefact.

Solutions that a start passes over are loaded when the worker has nothing to run, and a session's
new frames get them all at once (PASK VI, NNV12 3.5).
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from brisk.errors import BriskError
from brisk.execution.table import LayerTable
from brisk.execution.warming import warm_up
from brisk.graph.mapping import make_private
from brisk.runtime.artefact_use import ArtefactUse
from brisk.runtime.artefacts import ArtefactBuilder
from brisk.runtime.cache_watch import CacheWatch
from brisk.runtime.saying import say
from brisk.runtime.session import Session
from brisk.runtime.standing_back import standing_back
from brisk.runtime.start_report import report_start

LONGEST_WAIT_S = 1.0
"""How long a layer waits for a moment without requests; then it is loaded beside them."""

_LOOK_S = 0.002
_LANES_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class _Care:
    session: Session
    labels: tuple[str, str]
    loaded: Callable[[], None]
    stands_back: bool


class Upkeep:
    """One thread, in the order in which sessions came. ``is_serving`` is the worker's to set."""

    def __init__(
        self, device: torch.device, threads: int, artefacts: ArtefactUse, caches: CacheWatch
    ) -> None:
        self.is_serving = False
        self._caches = caches
        self._builder: ArtefactBuilder | None = None
        if artefacts is ArtefactUse.BUILD and device.type == "cpu":
            self._builder = ArtefactBuilder(device, threads)
        self._tasks: queue.SimpleQueue[_Care] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="brisk-upkeep", daemon=True).start()

    def look_after(
        self,
        session: Session,
        labels: tuple[str, str],
        loaded: Callable[[], None],
        stands_back: bool = False,
    ) -> None:
        """``loaded`` is called when the last layer is loaded, unless the session closes before.

        ``labels``: model and version that its start is counted under. ``stands_back``: on what
        processors others leave.
        """
        self._tasks.put(_Care(session, labels, loaded, stands_back))

    def _run(self) -> None:
        while True:
            care = self._tasks.get()
            look_after = functools.partial(self._look_after, care)
            try:
                standing_back(look_after) if care.stands_back else look_after()
            except Exception as error:  # noqa: BLE001  # other sessions need this thread
                say(f"{care.session.path}: {type(error).__name__}: {error}")
            del care, look_after  # a session that nobody needs any more must not live on here

    @torch.inference_mode()
    def _look_after(self, care: _Care) -> None:
        session, starting = care.session, care.session.starting
        table = starting.table
        while not table.wait(_LANES_LOOK_S):
            if table.is_closed:
                return
        care.loaded()
        report_start(session, care.labels)
        self._await_quiet()  # else the copy would compete with the rest of the first request
        make_private()
        caches = self._caches.open(session)
        cuts = () if caches is None else caches.cascade.cuts
        try:
            warm_up(starting, lambda: self._may_go_on(table), cuts)
        except BriskError as error:
            say(f"{session.path}: kept on the solutions it started with: {error}")
            caches = None  # runs that a start had ready do not stop at exits
        if caches is not None:
            self._caches.serve(session, caches)
        if self._builder is not None and starting.wants_artefact:
            self._builder.build_later(session.path)

    def _may_go_on(self, table: LayerTable) -> bool:
        """Whether the session is still wanted; blocks for a moment without requests."""
        self._await_quiet()
        return not table.is_closed

    def _await_quiet(self) -> None:
        until_s = time.monotonic() + LONGEST_WAIT_S
        while self.is_serving and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
