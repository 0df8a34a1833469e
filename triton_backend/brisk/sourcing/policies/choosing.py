"""Who gives which chunks: pure functions of what is known of all sources.

Sources are compared by predicted time, not in a fixed order (Flashpoint 5.1). Receivers of one
model form a chain without anybody who makes it (Flashpoint 6.2.1 has a controller): they rank
each other by how far they have come, then by name, and each pulls from the nearest one before it
that few others pull from, also what that one has not got yet but fetches next. What somebody has
already anybody may pull from him. Only the first, and who would have to wait much longer
otherwise, uses the registry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from brisk.sourcing.policies.stretches import Stretch, bits_of, first_stretch

LONGEST_CHAIN = 64

AHEAD_CHUNKS = 16
AHEAD_S = 0.5
"""By how much more one has than another, beyond doubt: what is known of it is somewhat old."""

IN_TIME_S = 0.15
"""So much later than oneself could have it a chunk may come from who fetches it, too."""

STILL_IN_TIME_S = 0.3
"""The same of who is sending: what is known of it may have come late; and of who pulls from whom
the receiver pulls from: both come to more by turns, until one of them pulls from the other."""

STALE_S = 0.7
"""Since it told what it has: then it has gone, perhaps, and nothing more is hoped for."""

FEW_CHUNKS = 8
"""So few that are awaited come at once, whatever comes beside them."""

MEASURED_CHUNKS, UNMEASURED_BYTES_PER_S = 8, 10e6
"""Of a host that has so many it is known how fast it comes to more; of others that is taken."""

EQUAL_SHARE, STILL_EQUAL_SHARE = 0.7, 0.5
"""Of the best speed: those are taken for equally fast, and then who has fewer receivers is. The
second of whom one pulls from already."""

RICH_SHARE = 0.5
"""Of the most chunks that one of those who have the next one can give."""

GOOD_SHARE = 0.5
"""Of the registry's speed: so fast peers spare it."""

MOST_MORE = 3
"""Peers that are pulled from beside the first."""


class Told(NamedTuple):
    """What a peer says of a copy. ``next``: what it fetches next, in order; empty where it does
    not. ``bytes_per_s``: at which it comes to it. ``receivers``: who pull from it. ``path``: the
    identities of whom it pulls from itself, of whom that one does, and so on."""

    identity: str
    here: int
    is_fetching: bool
    next: tuple[Stretch, ...]
    bytes_per_s: float
    receivers: int
    path: tuple[str, ...]


class KnownSource(NamedTuple):
    """A source, as it is seen here. ``told``: of a peer; None of a registry, which has all.
    ``age_s``: of that. ``bytes_per_s``: expected from it; ``known_bytes_per_s``: the best that was
    ever seen, 0: nobody knows. ``is_dry``: it had nothing new when it was last asked for more
    than it has. ``is_sending``: something came from it just now."""

    name: str
    told: Told | None
    age_s: float
    bytes_per_s: float
    known_bytes_per_s: float
    is_dry: bool
    is_sending: bool


class ReceiverState(NamedTuple):
    """The receiver itself. ``wanted``: in order. ``urgent``: what of that somebody waits for.
    ``upstream``: the name of the peer that it pulls from now; empty: none. ``best_bytes_per_s``:
    of all that ever came at once. ``path``: as ``Told`` has it."""

    identity: str
    here: int
    missing: int
    wanted: tuple[Stretch, ...]
    urgent: int
    chunk_bytes: int
    bytes_per_s: float
    best_bytes_per_s: float
    upstream: str
    path: tuple[str, ...] = ()


class Roles(NamedTuple):
    """``allowed``: the chunks that each source may be asked for, by its name. ``upstream``: the
    peer that the others of a chain see; empty: none."""

    allowed: Mapping[str, int]
    upstream: str


def is_before(told: Told, name: str, standing: ReceiverState) -> bool:
    """Whether a peer stands before the receiver in a chain: not where its own bytes come through
    the receiver, so that no chain ends in itself."""
    if not told.is_fetching:
        return True
    if standing.identity in told.path or len(told.path) >= LONGEST_CHAIN:
        return False
    rate = max(standing.bytes_per_s, told.bytes_per_s)
    margin = AHEAD_CHUNKS + int(AHEAD_S * rate / standing.chunk_bytes)
    ahead = told.here.bit_count() - standing.here.bit_count()
    if abs(ahead) > margin:
        return ahead > 0
    return name == standing.upstream or told.identity < standing.identity


def coming(candidate: KnownSource, standing: ReceiverState) -> int:
    """The chunks that a peer will have in time: not much later than they could be here without
    it."""
    told = candidate.told
    if told is None or not told.is_fetching or candidate.is_dry or candidate.age_s > STALE_S:
        return 0
    if not is_before(told, candidate.name, standing):
        return 0
    is_measured = told.bytes_per_s > 0 and told.here.bit_count() >= MEASURED_CHUNKS
    rate = told.bytes_per_s if is_measured else UNMEASURED_BYTES_PER_S
    rate = max(rate, candidate.known_bytes_per_s / 2)  # after a pause, too
    if candidate.is_sending:  # what comes from it came to it before
        rate = max(rate, standing.bytes_per_s)
    chunk_s = standing.chunk_bytes / rate
    is_beside = bool(told.path) and told.path[:1] == standing.path[:1]
    later_s = STILL_IN_TIME_S if candidate.is_sending or is_beside else IN_TIME_S
    found, before = 0, 0
    for ours in standing.wanted:
        count = (bits_of(ours) & standing.missing).bit_count()
        if not count:
            continue
        theirs_before = 0
        for theirs in told.next:
            both = Stretch(max(ours.start, theirs.start), min(ours.end, theirs.end))
            first = first_stretch(standing.missing, both, 1)
            if first is not None:
                theirs_at_s = (theirs_before + first.start - theirs.start) * chunk_s
                skipped = bits_of(Stretch(ours.start, first.start)) & standing.missing
                ours_at_s = (before + skipped.bit_count()) * chunk_s
                if theirs_at_s - candidate.age_s <= ours_at_s + later_s:
                    found |= bits_of(both)
            theirs_before += theirs.chunks
        before += count
    return found & standing.missing


def choose(candidates: Sequence[KnownSource], standing: ReceiverState) -> Roles:
    """Which chunks each source may be asked for now."""
    behind = _behind(candidates, standing)
    peers = [
        each._replace(is_dry=each.is_dry or each.told.identity in behind)
        for each in candidates
        if each.told is not None
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
        if registry.told is None:
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
    """Who pulls through the receiver, by what all tell together: a path is told older by a word
    for each host on it."""
    found = {standing.identity}
    told = [each.told for each in candidates if each.told is not None]
    while more := {
        each.identity
        for each in told
        if each.identity not in found and not found.isdisjoint(each.path)
    }:
        found |= more
    return found


def _urgent_first(allowed: int, candidate: KnownSource, standing: ReceiverState) -> int:
    """Nothing that can wait, beside what somebody waits for: both would come over one link. But
    where that comes slowly from elsewhere, the link has room."""
    if allowed & standing.urgent:
        return allowed & standing.urgent
    is_free = standing.bytes_per_s < GOOD_SHARE * candidate.known_bytes_per_s
    return allowed if is_free else 0


def _is_followed(upstream: KnownSource, standing: ReceiverState) -> bool:
    """Whether the receiver depends on it for what it has not got yet, or it is whole."""
    told = upstream.told
    return told is not None and (not told.is_fetching or coming(upstream, standing) != 0)


def _can(candidate: KnownSource, standing: ReceiverState) -> int:
    assert candidate.told is not None
    return candidate.told.here & standing.missing | coming(candidate, standing)


def _upstream(
    peers: Sequence[KnownSource], can: Mapping[str, int], standing: ReceiverState
) -> KnownSource | None:
    """Who gives the first chunk that any peer can give."""
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
    """Whom to go over to from who others pull from, too: to one of them, or who pulls through
    that one, that has more or else a lesser name: so all may go at once, and no chain ends in
    itself."""
    assert present.told is not None
    if present.told.receivers < 2:
        return []
    told = [each.told for each in peers if each.told is not None]
    counts = {each.identity: each.here.bit_count() for each in told}
    own = standing.here.bit_count()
    found = []
    for each in fast:
        if each.told is None or not each.told.is_fetching:
            continue
        names = (each.told.identity, *each.told.path)
        if present.told.identity not in names[1:]:
            continue
        root = names[names.index(present.told.identity, 1) - 1]
        is_first = counts.get(root, 0) > own or root < standing.identity
        if is_first and each.told.receivers < present.told.receivers - 1:
            found.append(each)
    return found


def _nearness(candidate: KnownSource) -> tuple[int, bool, str]:
    """Of peers that all stand before the receiver: the greatest is the one to pull from, with few
    receivers and just before it."""
    told = candidate.told
    assert told is not None
    return -told.receivers, told.is_fetching, told.identity


def _at_most(upstream: KnownSource | None) -> float:
    """Bytes/s at which the peer that is pulled from comes to what it does not have: who asks the
    registry beside it would only take it away from it."""
    told = None if upstream is None else upstream.told
    return told.bytes_per_s if told is not None and told.is_fetching else math.inf


def _more(
    peers: Sequence[KnownSource],
    can: Mapping[str, int],
    upstream: KnownSource,
    standing: ReceiverState,
) -> list[KnownSource]:
    """Further peers that nobody pulls from, and that have what is wanted, where the first alone
    leaves room: it was measured, and is below what came at once before."""
    measured = standing.bytes_per_s
    if not measured or standing.upstream != upstream.name:
        return []
    if measured >= 0.8 * standing.best_bytes_per_s:
        return []
    idle = [
        each
        for each in peers
        if each is not upstream
        and each.told is not None
        and not each.told.is_fetching
        and not each.told.receivers
        and can[each.name]
    ]
    return sorted(idle, key=lambda each: -each.bytes_per_s)[:MOST_MORE]


def next_run(wanted: Sequence[Stretch], allowed: int, most: int, least: int) -> Stretch | None:
    """The next chunks to ask a source for: the first that are ``allowed``, side by side, and a
    few behind them where they are fewer than ``least``."""
    for stretch in wanted:
        found = first_stretch(allowed, stretch, most)
        if found is None:
            continue
        if found.chunks < least:
            return first_stretch(allowed, Stretch(found.start, found.start + least), least)
        return found
    return None


USUAL_LEAST_CHUNKS = 4
"""That are asked for at once, where nobody waits for a few among many."""


def least_chunks(bytes_per_s: float, chunk_bytes: int, answer_s: float) -> int:
    """Fewer are not asked for at once: what comes in the time in which a request is answered."""
    return max(1, math.ceil(bytes_per_s * answer_s / chunk_bytes))


def run_chunks(bytes_per_s: float, chunk_bytes: int, seconds: float = 1.0) -> int:
    """So many chunks are asked for at once."""
    return max(4, int(bytes_per_s * seconds / chunk_bytes))
