"""The supply of one copy: it watches the copy's sources, chooses among them, leaves slow ones.

Used from one event loop only. ``brisk.sourcing.policies`` decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, MutableMapping, Sequence
from typing import NamedTuple

from brisk.errors import BriskError
from brisk.sourcing.fetching import Fetch
from brisk.sourcing.lanes import Bell, Portion, Record, Supplier
from brisk.sourcing.log import LOGGER
from brisk.sourcing.policies import choosing
from brisk.sourcing.policies.choosing import (
    LONGEST_CHAIN,
    KnownSource,
    PeerReport,
    ReceiverState,
    Roles,
)
from brisk.sourcing.policies.patience import is_late, is_silent, is_slow
from brisk.sourcing.policies.stretches import Layout, Stretch
from brisk.sourcing.policies.wants import merged
from brisk.sourcing.policies.worth import expected_bytes_per_s
from brisk.sourcing.sources.registry import ByteSource

LOOK_S = 0.1
"""The interval at which sources and their requests are checked."""

SLOW_FOR_S = 10.0
"""The time for which a source that was slow is expected to stay slow."""

SENDING_S = 0.3
"""The time since its last byte for which a source counts as sending."""

MOST_NEXT = 32
"""The most stretches of chunks to fetch next that are reported to other hosts."""

FIRST_CHUNKS = 4
"""The most chunks of a first request to a source that was never measured. Until it is measured,
later requests have at most as many as it has given so far."""

_MEASURED_S = 0.5
"""The time for which a source has to be busy to be measured."""


class KnownPeer(NamedTuple):
    """A peer's last report of the copy, when it came, and when the chunks in it last changed."""

    report: PeerReport
    reported_s: float
    changed_s: float


class Supply:
    """The sources of a copy; chunks are requested from them between ``start`` and ``close``."""

    def __init__(
        self,
        fetch: Fetch,
        identity: str,
        best_rates: MutableMapping[str, float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a supply without sources. ``identity``: this host's, for peers. ``best_rates``:
        the best bytes/s ever seen, by sources' names."""
        self.fetch = fetch
        self.identity = identity
        self.suppliers: list[Supplier] = []
        self.upstream = ""
        """The name of the peer that the copy is pulled from; empty if none."""
        self._best = best_rates
        self._clock = clock
        self._known: dict[str, KnownPeer] = {}
        self._unanswered: set[str] = set()
        self._hold_s = 0.0
        self._started_s = clock()
        self._news = Bell()
        self._roles = Roles({}, "")
        self._blamed: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(
        self,
        sources: Sequence[ByteSource],
        hold_s: float = 0.0,
        gone: Collection[str] = (),
    ) -> None:
        """Begin to request chunks from ``sources`` once all peers have reported except those
        named in ``gone``, or after ``hold_s``.

        A host that began before it knows its peers would take the registry's rate from them.
        """
        self._hold_s = hold_s
        self._unanswered = {each.name for each in sources if each.is_peer} - set(gone)
        for source in sources:
            self.suppliers.append(Supplier(source, self, self._clock))
        self._choose()
        self._tasks = [
            asyncio.create_task(self._look_often()),
            asyncio.create_task(self._hurry_often()),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for supplier in self.suppliers:
            await supplier.close()

    @property
    def best_rate(self) -> float:
        """The best bytes/s ever seen from one of the sources; 0 if unknown."""
        return max((self._best.get(each.name, 0.0) for each in self.suppliers), default=0.0)

    @property
    def is_hopeless(self) -> bool:
        """Whether every source gave wrong bytes, or is a peer that has no missing chunk."""
        usable = [each for each in self.suppliers if not each.is_blamed]
        missing = self.fetch.missing
        return not any(
            not each.is_peer
            or (each.name in self._known and self._known[each.name].report.here & missing)
            for each in usable
        )

    def problem(self) -> str:
        """Return the problem of each source, by name, as one text."""
        return "; ".join(
            each.problem or f"{each.name}: nothing has come yet" for each in self.suppliers
        )

    def records(self) -> list[Record]:
        return [each.record for each in self.suppliers]

    def report(self, receivers: int) -> PeerReport:
        """Return the report of this host's copy for other hosts."""
        fetch = self.fetch
        return PeerReport(
            identity=self.identity,
            here=fetch.here,
            is_fetching=bool(fetch.missing),
            next=merged(fetch.wanted, fetch.missing, MOST_NEXT),
            bytes_per_s=fetch.meter.rate(self._clock()),
            receivers=receivers,
            path=self._path,
        )

    @property
    def _path(self) -> tuple[str, ...]:
        """The identities of the upstream, of the upstream's upstream, and so on."""
        peer = self._known.get(self.upstream)
        if peer is None:
            return ()
        return (peer.report.identity, *peer.report.path)[:LONGEST_CHAIN]

    def hear(self, name: str, report: PeerReport | None, problem: str = "") -> None:
        """Accept a peer's report; None if it has no copy or does not answer (``problem``)."""
        self._unanswered.discard(name)
        supplier = next(each for each in self.suppliers if each.name == name)
        if report is None:
            self._known.pop(name, None)
            if not supplier.is_blamed:
                supplier.problem = problem
        else:
            before, now_s = self._known.get(name), self._clock()
            changed_s = now_s
            if before is None:
                supplier.problem = ""
            elif before.report.here == report.here:
                changed_s = before.changed_s
            if changed_s == now_s:
                supplier.is_dry = False
            self._known[name] = KnownPeer(report, now_s, changed_s)
        self._choose()
        self._news.ring()

    async def wait_until_curious(self) -> None:
        while not self.fetch.missing:
            await asyncio.shield(self.fetch.wanted_anew.rung())

    # The interface of Customer.

    @property
    def layout(self) -> Layout:
        return self.fetch.layout

    def next_portion(self, supplier: Supplier) -> Stretch | None:
        fetch, layout = self.fetch, self.fetch.layout
        if fetch.failure is not None:
            return None
        free = fetch.missing & ~self._claimed() & ~self._left_by(supplier)
        allowed = self._roles.allowed.get(supplier.name, 0) & free
        chunk_bytes = fetch.copy.manifest.chunk_bytes
        most = max(FIRST_CHUNKS, supplier.meter.total // chunk_bytes)
        if self._best.get(supplier.name):
            most = choosing.run_chunks(self._speed(supplier), chunk_bytes)
        least = choosing.USUAL_LEAST_CHUNKS
        if fetch.has_several_waiters:  # rows of a table, in addition to all else
            least = choosing.least_chunks(self._speed(supplier), chunk_bytes, supplier.answer_s)
        run = None
        if supplier.is_starved and (peer := self._known.get(supplier.name)) is not None:
            run = choosing.next_run(fetch.wanted, allowed & peer.report.here, most, least)
        if run is None:
            run = choosing.next_run(fetch.wanted, allowed, most, least)
        if run is None:
            return None
        file = layout.file(layout.place(run.start)[0])
        if not supplier.is_ranged:  # it sends whole files
            return None if supplier.portions else file
        return Stretch(run.start, min(run.end, file.end))

    async def wait_for_news(self) -> None:
        await asyncio.shield(self._news.rung())

    async def put(self, index: int, pieces: list[bytes | memoryview]) -> bool:
        return await self.fetch.put(index, pieces)

    def is_stuck(self, supplier: Supplier, portion: Portion) -> bool:
        peer = self._known.get(supplier.name)
        return peer is None or peer.changed_s < portion.asked_s

    def note(self, supplier: Supplier) -> None:
        if supplier.is_blamed and supplier.name not in self._blamed:
            self._blamed.add(supplier.name)
            LOGGER.warning(f"{supplier.problem}; it is not asked again")
        self._choose()
        self._news.ring()

    def reject_form(self, number: int, problem: str) -> None:
        self.fetch.reject_form(number, problem)

    def fail(self, error: BriskError) -> None:
        self.fetch.fail(error)

    # Choosing.

    def _claimed(self) -> int:
        """Return the set of chunks that are requested from some source."""
        claimed = 0
        for each in self.suppliers:
            for portion in each.portions:
                claimed |= portion.bits
        return claimed

    def _left_by(self, supplier: Supplier) -> int:
        """Return the chunks that took too long from a source, and for which another one may be
        asked that was late with them less often."""
        left = 0
        for index, times in supplier.late.items():
            for each in self.suppliers:
                if each.late[index] < times and self._roles.allowed.get(each.name, 0) >> index & 1:
                    left |= 1 << index
        return left

    def _is_late(self, supplier: Supplier, portion: Portion, now_s: float) -> bool:
        """Whether a request's chunk would come sooner from another source that has it.

        Each time the patience doubles, and who was late more often is no other source: a chunk
        that is slow from all of them comes, too.
        """
        if portion.next >= portion.end:
            return False
        index, size = portion.next, self.layout.manifest.chunk_bytes
        times = supplier.late[index]
        waited_s = (now_s - portion.chunk_s) / 2.0 ** min(times, 9)
        return any(
            is_late(waited_s, size, each.measured(_MEASURED_S) or self._speed(each))
            for each in self.suppliers
            if each is not supplier and each.late[index] <= times and self._has(each, index)
        )

    def _has(self, supplier: Supplier, index: int) -> bool:
        """Whether a source can be asked now, and has the chunk."""
        peer = self._known.get(supplier.name)
        is_there = peer is not None and bool(peer.report.here >> index & 1)
        return supplier.is_usable and (is_there or not supplier.is_peer)

    def _speed(self, supplier: Supplier) -> float:
        """Return the bytes/s that a source is expected to give.

        This is its best ever rate, or its slow rate if it was slow lately. For a peer that was
        never measured it is the best of all peers.
        """
        if self._clock() < supplier.slow_until_s:
            return supplier.slow_bytes_per_s
        alike = (
            self._best.get(each.name, 0.0)
            for each in self.suppliers
            if each.is_peer and supplier.is_peer
        )
        return expected_bytes_per_s(self._best.get(supplier.name, 0.0), max(alike, default=0.0))

    def _due(self, supplier: Supplier) -> float:
        """Return the bytes/s below which a source counts as slow now; 0 if unknown."""
        best = self._best.get(supplier.name, 0.0)
        peer = self._known.get(supplier.name)
        comes = peer.report.bytes_per_s if peer is not None and peer.report.is_fetching else best
        return min(best, comes, self._speed(supplier))

    def _choose(self) -> None:
        now_s = self._clock()
        fetch = self.fetch
        is_held = bool(self._unanswered) and now_s - self._started_s < self._hold_s
        candidates = []
        for each in () if is_held else self.suppliers:
            peer = self._known.get(each.name)
            if not each.is_usable or (peer is None and each.is_peer):
                continue
            candidates.append(
                KnownSource(
                    name=each.name,
                    report=None if peer is None else peer.report,
                    age_s=0.0 if peer is None else now_s - peer.reported_s,
                    bytes_per_s=self._speed(each),
                    known_bytes_per_s=self._best.get(each.name, 0.0),
                    is_dry=peer is not None and each.is_dry,
                    is_sending=each.is_sending(SENDING_S),
                )
            )
        standing = ReceiverState(
            identity=self.identity,
            here=fetch.here,
            missing=fetch.missing,
            wanted=fetch.wanted,
            urgent=fetch.urgent,
            chunk_bytes=fetch.copy.manifest.chunk_bytes,
            bytes_per_s=fetch.meter.rate(now_s),
            best_bytes_per_s=self._best.get("", 0.0),
            upstream=self.upstream,
            path=self._path,
        )
        self._roles = choosing.choose(candidates, standing)
        self.upstream = self._roles.upstream
        for each in self.suppliers:
            allowed = self._roles.allowed.get(each.name, 0)
            for portion in each.portions:
                rest = portion.bits & ~(1 << portion.next)
                if portion.bits and not portion.bits & fetch.wanted_bits:
                    each.drop(portion)
                elif rest and not rest & allowed:  # another source is better
                    portion.cut()

    async def _look_often(self) -> None:
        while True:
            await self.wait_until_curious()
            await asyncio.sleep(LOOK_S)
            self._look()
            self._news.ring()

    async def _hurry_often(self) -> None:
        """Whenever other chunks are wanted, request the first one at once.

        If no source was asked for it, each busy source sends a request concurrently with its
        current answer.
        """
        while True:
            await asyncio.shield(self.fetch.wanted_anew.rung())
            self._choose()
            self._news.ring()
            first = choosing.next_run(self.fetch.wanted, self.fetch.missing, 1, 1)
            claimed = self._claimed()
            if first is not None and not claimed >> first.start & 1:
                for each in self.suppliers:
                    each.hurry()

    def _look(self) -> None:
        now_s = self._clock()
        for each in self.suppliers:
            if rate := each.measured(_MEASURED_S):
                self._best[each.name] = max(self._best.get(each.name, 0.0), rate)
            for portion in list(each.portions):
                heard_s = portion.asked_s if portion.heard_s is None else portion.heard_s
                if now_s - heard_s > LOOK_S / 2:
                    portion.expect(1)  # a peer that ends its answer sends some bytes
                waited = each.waited(portion, self._due(each))
                if is_silent(waited, now_s):
                    self._known.pop(each.name, None)  # until its next report
                    each.leave(portion, f"{each.name}: no byte came in time")
                elif self._is_late(each, portion, now_s):
                    each.leave_late(portion, now_s + SLOW_FOR_S)
                elif is_slow(waited):
                    each.slow_bytes_per_s = max(waited.bytes_per_s, 1.0)
                    each.slow_until_s = now_s + SLOW_FOR_S
        total = self.fetch.meter.rate(now_s)
        self._best[""] = max(self._best.get("", 0.0), total)
        self._choose()
