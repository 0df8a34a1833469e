"""The choice of which source gives which chunks: pure functions of a snapshot of all sources.

Sources are compared by predicted time, not in a fixed order (Flashpoint 5.1). Receivers of one
model form a chain without a controller (Flashpoint 6.2.1 has one). They rank each other by how
much they have, then by name. Each pulls from the nearest one before it from which few others pull,
including chunks that this one fetches next. Any receiver may pull what another has already. Only
the first receiver, and those that would otherwise wait much longer, use the registry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from brisk.sourcing.policies.stretches import Stretch, bits_of, first_stretch

LONGEST_CHAIN = 64

AHEAD_CHUNKS = 16
AHEAD_S = 0.5
"""The margin beyond which a receiver with more chunks is certainly ahead, as reports are somewhat
old: ``AHEAD_CHUNKS`` and what arrives in ``AHEAD_S``."""

IN_TIME_S = 0.15
"""The accepted delay of a chunk from a host that is still fetching it."""

STILL_IN_TIME_S = 0.3
"""``IN_TIME_S`` for a source that is sending, whose report may be late, and for receivers of the
same upstream: these get ahead of each other alternately, until one pulls from the other."""

STALE_S = 0.7
"""The age of a report after which its host may have gone: no chunk that it is still fetching is
expected from it."""

FEW_CHUNKS = 8
"""The number of urgent chunks up to which they arrive at once even if others share the link."""

MEASURED_CHUNKS, UNMEASURED_BYTES_PER_S = 8, 10e6
"""The number of chunks from which on a host's reported rate counts as known, and the rate that is
assumed before."""

EQUAL_SHARE, STILL_EQUAL_SHARE = 0.7, 0.5
"""The share of the best speed from which on sources count as equally fast, so that the one with
fewer receivers is chosen; and that share for the present upstream."""

RICH_SHARE = 0.5
"""The share of the chunks that the best source of the next chunk can give, which an upstream must
be able to give at least."""

GOOD_SHARE = 0.5
"""The share of the registry's best rate at which peers relieve it. Below this share of a source's
best rate, the receiver's link has room for its chunks that are not urgent."""

MOST_MORE = 3
"""The most peers that are pulled from concurrently with the upstream."""


class PeerReport(NamedTuple):
    """A peer's report about its own copy."""

    identity: str
    here: int
    """The set of chunks that the peer has."""
    is_fetching: bool
    next: tuple[Stretch, ...]
    """The chunks that the peer fetches next, in order."""
    bytes_per_s: float
    """The rate at which the peer fetches."""
    receivers: int
    """The number of hosts that pull from the peer."""
    path: tuple[str, ...]
    """The identities of the peer's upstream, of that one's upstream, and so on."""


class KnownSource(NamedTuple):
    """A source, as the receiver sees it."""

    name: str
    report: PeerReport | None
    """The peer's last report; None for a registry, which has all chunks."""
    age_s: float
    """The age of the report."""
    bytes_per_s: float
    """The rate that is expected from the source."""
    known_bytes_per_s: float
    """The best rate ever seen from the source; 0 if unknown."""
    is_dry: bool
    """Whether the peer had nothing new when it was last asked for more than it has."""
    is_sending: bool
    """Whether something came from the source just now."""


class ReceiverState(NamedTuple):
    """The state of the receiver, for which sources are chosen."""

    identity: str
    here: int
    missing: int
    wanted: tuple[Stretch, ...]
    """The chunks that are wanted, in order."""
    urgent: int
    """The set of missing chunks that a caller waits for, or that describe the model."""
    chunk_bytes: int
    bytes_per_s: float
    best_bytes_per_s: float
    """The best rate ever, of all sources together."""
    upstream: str
    """The name of the peer that the receiver pulls from now; empty if none."""
    path: tuple[str, ...] = ()
    """The identities of the receiver's upstream, of that one's upstream, and so on."""


class Roles(NamedTuple):
    """The choice: which source gives which chunks, and the upstream."""

    allowed: Mapping[str, int]
    """The chunks that each source may be asked for, by its name."""
    upstream: str
    """The name of the peer that other hosts see as the receiver's upstream; empty if none."""


def is_before(report: PeerReport, name: str, standing: ReceiverState) -> bool:
    """Whether a peer is before the receiver in a chain.

    A peer whose own bytes come through the receiver is not, so that no chain forms a cycle.
    """
    if not report.is_fetching:
        return True
    if standing.identity in report.path or len(report.path) >= LONGEST_CHAIN:
        return False
    rate = max(standing.bytes_per_s, report.bytes_per_s)
    margin = AHEAD_CHUNKS + int(AHEAD_S * rate / standing.chunk_bytes)
    ahead = report.here.bit_count() - standing.here.bit_count()
    if abs(ahead) > margin:
        return ahead > 0
    return name == standing.upstream or report.identity < standing.identity


def coming(candidate: KnownSource, standing: ReceiverState) -> int:
    """Return the missing chunks that a peer fetches in time: not much later than the receiver
    would get them without it."""
    report = candidate.report
    if report is None or not report.is_fetching or candidate.is_dry or candidate.age_s > STALE_S:
        return 0
    if not is_before(report, candidate.name, standing):
        return 0
    is_measured = report.bytes_per_s > 0 and report.here.bit_count() >= MEASURED_CHUNKS
    rate = report.bytes_per_s if is_measured else UNMEASURED_BYTES_PER_S
    rate = max(rate, candidate.known_bytes_per_s / 2)  # after a pause, too
    if candidate.is_sending:  # what comes from it came to it before
        rate = max(rate, standing.bytes_per_s)
    chunk_s = standing.chunk_bytes / rate
    is_beside = bool(report.path) and report.path[:1] == standing.path[:1]
    later_s = STILL_IN_TIME_S if candidate.is_sending or is_beside else IN_TIME_S
    in_time, before = 0, 0
    for ours in standing.wanted:
        count = (bits_of(ours) & standing.missing).bit_count()
        if not count:
            continue
        theirs_before = 0
        for theirs in report.next:
            both = Stretch(max(ours.start, theirs.start), min(ours.end, theirs.end))
            first = first_stretch(standing.missing, both, 1)
            if first is not None:
                theirs_at_s = (theirs_before + first.start - theirs.start) * chunk_s
                skipped = bits_of(Stretch(ours.start, first.start)) & standing.missing
                ours_at_s = (before + skipped.bit_count()) * chunk_s
                if theirs_at_s - candidate.age_s <= ours_at_s + later_s:
                    in_time |= bits_of(both)
            theirs_before += theirs.chunks
        before += count
    return in_time & standing.missing


def choose(candidates: Sequence[KnownSource], standing: ReceiverState) -> Roles:
    """Return which chunks each source may be asked for now."""
    behind = _behind(candidates, standing)
    peers = [
        each._replace(is_dry=each.is_dry or each.report.identity in behind)
        for each in candidates
        if each.report is not None
    ]
    can = {each.name: _can(each, standing) for each in peers}
    upstream = _upstream(peers, can, standing)
    allowed = {upstream.name: can[upstream.name]} if upstream is not None else {}
    if upstream is not None:
        allowed |= {each.name: can[each.name] for each in _more(peers, can, upstream, standing)}
    speed = sum(each.bytes_per_s for each in peers if each.name in allowed)
    comes = _at_most(upstream)
    covered = 0
    for bits in can.values():
        covered |= bits
    for registry in candidates:
        if registry.report is None:
            is_spared = speed >= GOOD_SHARE * min(registry.known_bytes_per_s, comes)
            allowed[registry.name] = standing.missing & ~(covered if is_spared else 0)
    if standing.urgent.bit_count() > FEW_CHUNKS:
        allowed = {
            each.name: _urgent_first(allowed.get(each.name, 0), each, standing)
            for each in candidates
        }
    is_followed = upstream is not None and _is_followed(upstream, standing)
    return Roles(allowed, upstream.name if upstream is not None and is_followed else "")


def _behind(candidates: Sequence[KnownSource], standing: ReceiverState) -> set[str]:
    """Return the identities that pull through the receiver, directly or not.

    All reports are combined: a path is one report older for each further host on it.
    """
    identities = {standing.identity}
    reports = [each.report for each in candidates if each.report is not None]
    while more := {
        each.identity
        for each in reports
        if each.identity not in identities and not identities.isdisjoint(each.path)
    }:
        identities |= more
    return identities


def _urgent_first(allowed: int, candidate: KnownSource, standing: ReceiverState) -> int:
    """Return only the urgent chunks of those ``allowed``: others would share the link.

    Without urgent ones among them, return all if the receiver's rate leaves the link room, else
    none.
    """
    if allowed & standing.urgent:
        return allowed & standing.urgent
    is_free = standing.bytes_per_s < GOOD_SHARE * candidate.known_bytes_per_s
    return allowed if is_free else 0


def _is_followed(upstream: KnownSource, standing: ReceiverState) -> bool:
    """Whether ``upstream`` has a whole copy, or will fetch chunks in time for the receiver."""
    report = upstream.report
    return report is not None and (not report.is_fetching or coming(upstream, standing) != 0)


def _can(candidate: KnownSource, standing: ReceiverState) -> int:
    assert candidate.report is not None
    return candidate.report.here & standing.missing | coming(candidate, standing)


def _upstream(
    peers: Sequence[KnownSource], can: Mapping[str, int], standing: ReceiverState
) -> KnownSource | None:
    """Return the peer to pull from: one that can give the first wanted chunk that any peer can."""
    all_bits = 0
    for bits in can.values():
        all_bits |= bits
    first = next_run(standing.wanted, all_bits, 1, 1)
    if first is None:
        return None
    able = [each for each in peers if can[each.name] >> first.start & 1]
    most = max(can[each.name].bit_count() for each in able)
    rich = [each for each in able if can[each.name].bit_count() >= RICH_SHARE * most]
    best = max(each.bytes_per_s for each in rich)
    fast = [each for each in rich if each.bytes_per_s >= EQUAL_SHARE * best]
    present = next((each for each in rich if each.name == standing.upstream), None)
    if present is not None and present.bytes_per_s >= STILL_EQUAL_SHARE * best:
        fast = _nearer(fast, present, peers, standing)
        return max(fast, key=_nearness, default=present)
    return max(fast, key=_nearness)


def _nearer(
    fast: Sequence[KnownSource],
    present: KnownSource,
    peers: Sequence[KnownSource],
    standing: ReceiverState,
) -> list[KnownSource]:
    """Return the peers to change to from an upstream that has several receivers.

    Each pulls through the upstream, by way of a direct receiver of it that has more chunks than
    this one or a smaller name: so all may change at once, and no chain forms a cycle.
    """
    assert present.report is not None
    if present.report.receivers < 2:
        return []
    reports = [each.report for each in peers if each.report is not None]
    counts = {each.identity: each.here.bit_count() for each in reports}
    own = standing.here.bit_count()
    nearer = []
    for each in fast:
        if each.report is None or not each.report.is_fetching:
            continue
        names = (each.report.identity, *each.report.path)
        if present.report.identity not in names[1:]:
            continue
        root = names[names.index(present.report.identity, 1) - 1]
        is_first = counts.get(root, 0) > own or root < standing.identity
        if is_first and each.report.receivers < present.report.receivers - 1:
            nearer.append(each)
    return nearer


def _nearness(candidate: KnownSource) -> tuple[int, bool, str]:
    """Return the sort key of a peer before the receiver: the greatest has fewest receivers, then
    is still fetching, then has the greatest name."""
    report = candidate.report
    assert report is not None
    return -report.receivers, report.is_fetching, report.identity


def _at_most(upstream: KnownSource | None) -> float:
    """Return the bytes/s at which the upstream itself fetches; infinity if it does not fetch.

    Concurrent requests to the registry would only take this rate from the upstream.
    """
    report = None if upstream is None else upstream.report
    return report.bytes_per_s if report is not None and report.is_fetching else math.inf


def _more(
    peers: Sequence[KnownSource],
    can: Mapping[str, int],
    upstream: KnownSource,
    standing: ReceiverState,
) -> list[KnownSource]:
    """Return further whole peers without receivers, the fastest first, to pull from concurrently
    with the upstream.

    Empty unless the upstream is the present one, and the receiver's rate is below 0.8 of its best.
    """
    measured = standing.bytes_per_s
    if not measured or standing.upstream != upstream.name:
        return []
    if measured >= 0.8 * standing.best_bytes_per_s:
        return []
    idle = [
        each
        for each in peers
        if each is not upstream
        and each.report is not None
        and not each.report.is_fetching
        and not each.report.receivers
        and can[each.name]
    ]
    return sorted(idle, key=lambda each: -each.bytes_per_s)[:MOST_MORE]


def next_run(wanted: Sequence[Stretch], allowed: int, most: int, least: int) -> Stretch | None:
    """Return the next chunks to request: the first run of adjacent ``allowed`` ones, up to
    ``most``, extended past the wanted ones if it has fewer than ``least``."""
    for stretch in wanted:
        run = first_stretch(allowed, stretch, most)
        if run is None:
            continue
        if run.chunks < least:
            return first_stretch(allowed, Stretch(run.start, run.start + least), least)
        return run
    return None


USUAL_LEAST_CHUNKS = 4
"""The fewest chunks of a request, unless several callers wait for chunks."""


def least_chunks(bytes_per_s: float, chunk_bytes: int, answer_s: float) -> int:
    """Return the fewest chunks of a request: what arrives in ``answer_s``, the time until a
    request is answered."""
    return max(1, math.ceil(bytes_per_s * answer_s / chunk_bytes))


def run_chunks(bytes_per_s: float, chunk_bytes: int) -> int:
    """Return the most chunks of a request: what arrives in a second, at least 4."""
    return max(4, int(bytes_per_s / chunk_bytes))
