"""The choice of who gives which chunks, and receivers that form a chain which nobody makes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from brisk.sourcing.policies.choosing import (
    AHEAD_CHUNKS,
    FEW_CHUNKS,
    LONGEST_CHAIN,
    KnownSource,
    PeerReport,
    ReceiverState,
    Roles,
    choose,
    coming,
    is_before,
    next_run,
)
from brisk.sourcing.policies.stretches import Stretch, bits_of
from brisk.sourcing.policies.wants import merged

CHUNK_BYTES = 1 << 18
COUNT = 1000
ALL = (1 << COUNT) - 1
WHOLE = (Stretch(0, COUNT),)
FAST = 100e6
NONE = Roles({}, "")


def first(count: int) -> int:
    """The first chunks of all."""
    return (1 << count) - 1


def told(
    identity: str, here: int, receivers: int = 0, path: tuple[str, ...] = (), rate: float = FAST
) -> PeerReport:
    """Return the report of a peer that fetches what it has not got, in order."""
    following = merged(WHOLE, ALL & ~here, 32)
    return PeerReport(identity, here, here != ALL, following, rate, receivers, path)


def peer(
    tells: PeerReport, *, rate: float = FAST, known_rate: float = FAST, is_dry: bool = False
) -> KnownSource:
    return KnownSource(f"peer {tells.identity}", tells, 0.05, rate, known_rate, is_dry, False)


def registry(rate: float = FAST, known_rate: float = FAST) -> KnownSource:
    return KnownSource("registry", None, 0.0, rate, known_rate, False, False)


def standing(
    here: int = 0,
    *,
    identity: str = "m",
    upstream: str = "",
    rate: float = FAST,
    best: float = FAST,
    urgent: int = 0,
) -> ReceiverState:
    return ReceiverState(
        identity, here, ALL & ~here, WHOLE, urgent, CHUNK_BYTES, rate, best, upstream
    )


# From whom.


def test_nobody_gives_nothing() -> None:
    assert choose([], standing()) == NONE


def test_a_registry_alone_gives_all_that_is_missing() -> None:
    assert choose([registry()], standing(first(10))) == Roles({"registry": ALL & ~first(10)}, "")
    assert choose([registry(0.0, 0.0)], standing()).allowed["registry"] == ALL


def test_a_whole_idle_peer_is_preferred_to_the_registry() -> None:
    roles = choose([registry(), peer(told("z", ALL))], standing())
    assert roles == Roles({"peer z": ALL, "registry": 0}, "peer z")
    unknown = [registry(known_rate=0.0), peer(told("z", ALL), known_rate=0.0)]
    assert choose(unknown, standing()).allowed["registry"] == 0


def test_a_registry_that_is_much_faster_helps_a_slow_peer() -> None:
    slow = peer(told("z", ALL), rate=0.4 * FAST)
    assert choose([registry(), slow], standing()).allowed == {"peer z": ALL, "registry": ALL}
    enough = peer(told("z", ALL), rate=0.5 * FAST)
    assert choose([registry(), enough], standing()).allowed["registry"] == 0


def test_what_no_peer_has_comes_from_the_registry_meanwhile() -> None:
    part = PeerReport("z", first(300), False, (), 0.0, 0, ())
    assert choose([registry(), peer(part)], standing(first(100))).allowed == {
        "peer z": first(300) & ~first(100),
        "registry": ALL & ~first(300),
    }


def test_of_whole_peers_the_one_with_the_fewest_receivers_is_taken() -> None:
    peers = [peer(told("a", ALL, 2)), peer(told("b", ALL, 0)), peer(told("c", ALL, 1))]
    assert choose(peers, standing()).upstream == "peer b"


def test_a_much_slower_peer_is_not_taken_for_its_few_receivers() -> None:
    peers = [peer(told("a", ALL, 1)), peer(told("b", ALL, 0), rate=0.6 * FAST)]
    assert choose(peers, standing()).upstream == "peer a"
    peers = [peer(told("a", ALL, 1)), peer(told("b", ALL, 0), rate=0.8 * FAST)]
    assert choose(peers, standing()).upstream == "peer b"


def test_a_peer_that_is_pulled_from_is_kept_while_it_is_half_as_fast() -> None:
    peers = [peer(told("a", ALL), rate=0.6 * FAST), peer(told("b", ALL))]
    assert choose(peers, standing(upstream="peer a")).upstream == "peer a"
    peers = [peer(told("a", ALL), rate=0.4 * FAST), peer(told("b", ALL))]
    assert choose(peers, standing(upstream="peer a")).upstream == "peer b"


def test_further_idle_whole_peers_help_where_the_first_leaves_room() -> None:
    peers = [peer(told(name, ALL, receivers)) for name, receivers in (("a", 1), ("b", 0))]
    peers.append(peer(told("c", ALL, 1)))
    slow = standing(upstream="peer a", rate=0.5 * FAST)
    assert choose(peers, slow).allowed == {"peer a": ALL, "peer b": ALL}
    quick = standing(upstream="peer a", rate=0.9 * FAST)
    assert choose(peers, quick).allowed == {"peer a": ALL}


# Who stands before whom.


@pytest.mark.parametrize("name", ["a", "z"])
def test_who_has_more_beyond_doubt_is_upstream_whatever_its_name(name: str) -> None:
    margin = AHEAD_CHUNKS + int(0.5 * FAST / CHUNK_BYTES)
    ahead = told(name, first(300 + margin + 1))
    ours = standing(first(300))
    assert is_before(ahead, f"peer {name}", ours)
    assert choose([registry(), peer(ahead)], ours).upstream == f"peer {name}"
    behind = told(name, first(300 - margin - 1))
    assert not is_before(behind, f"peer {name}", ours)
    assert choose([registry(), peer(behind)], ours).allowed["registry"] == ALL & ~first(300)


def test_among_equals_the_lesser_name_is_before_and_who_is_followed_stays_so() -> None:
    assert is_before(told("a", first(100)), "peer a", standing(first(100)))
    assert not is_before(told("z", first(100)), "peer z", standing(first(100)))
    assert is_before(told("z", first(100)), "peer z", standing(first(100), upstream="peer z"))
    assert is_before(told("z", ALL), "peer z", standing(first(100)))


@pytest.mark.parametrize("path", [("m",), ("b", "m"), ("b", "m", "c")])
@pytest.mark.parametrize("here", [0, first(100), first(900)])
def test_who_pulls_from_me_is_never_my_upstream(path: tuple[str, ...], here: int) -> None:
    below = told("a", here, path=path)
    for ours in (standing(first(100)), standing(first(100), upstream="peer a")):
        assert not is_before(below, "peer a", ours)
        assert coming(peer(below), ours) == 0
        assert choose([registry(), peer(below)], ours).upstream == ""


def test_what_who_pulls_from_me_has_already_may_be_had_from_it() -> None:
    below = peer(told("a", first(300), path=("m",)))
    roles = choose([registry(), below], standing(first(100)))
    assert roles.allowed["peer a"] == first(300) & ~first(100)
    assert roles.upstream == ""


def test_who_pulls_through_one_that_says_it_pulls_from_me_is_never_my_upstream() -> None:
    """A host's report of its path is older by a report for each host on it: a does not know yet
    that c has gone over to m."""
    peers = [
        peer(told("a", first(40), path=("f", "d", "c"))),
        peer(told("f", first(176), path=("d", "c"))),
        peer(told("d", first(156), path=("c", "m"))),
        peer(told("c", first(168), path=("m",))),
    ]
    assert choose([registry(), *peers], standing(first(180))).upstream == ""


def test_a_chain_does_not_grow_without_end() -> None:
    path = tuple(f"h{number}" for number in range(LONGEST_CHAIN))
    assert not is_before(told("a", first(900), path=path), "peer a", standing())
    assert is_before(told("a", first(900), path=path[1:]), "peer a", standing())


def test_a_dry_peer_is_asked_for_what_it_has_alone() -> None:
    dry = peer(told("a", first(150)), is_dry=True)
    roles = choose([registry(), dry], standing(first(100), upstream="peer a"))
    assert roles.upstream == ""
    assert roles.allowed == {"peer a": first(150) & ~first(100), "registry": ALL & ~first(150)}
    nothing_new = peer(told("a", first(100)), is_dry=True)
    roles = choose([registry(), nothing_new], standing(first(100), upstream="peer a"))
    assert roles == Roles({"registry": ALL & ~first(100)}, "")


def test_what_a_peer_fetches_next_comes_in_time_and_what_it_fetches_last_does_not() -> None:
    backwards = tuple(Stretch(start, start + 100) for start in range(900, -100, -100))
    other = PeerReport("a", first(0), True, backwards, FAST, 0, ())
    comes = coming(peer(other), standing())
    assert not comes & 1
    assert comes >> 999 & 1
    same = coming(peer(told("a", 0)), standing())
    assert same == ALL


def test_nothing_that_can_wait_is_asked_for_beside_what_somebody_waits_for() -> None:
    urgent = bits_of(Stretch(500, 501 + FEW_CHUNKS))
    assert choose([registry()], standing(urgent=urgent)).allowed == {"registry": urgent}
    few = bits_of(Stretch(500, 500 + FEW_CHUNKS))
    assert choose([registry()], standing(urgent=few)).allowed == {"registry": ALL}


# Receivers that come together.

ROUND_S = 0.1
LINK_CHUNKS = 40
"""Chunks that a link lets through in a round: 105 MB/s."""


@dataclass
class Receiver:
    """A host that receives chunks and passes them on."""

    identity: str
    here: int = 0
    upstream: str = ""
    is_dead: bool = False
    given: list[dict[str, int]] = field(default_factory=list)
    """Chunks by source, in each round."""
    best: dict[str, float] = field(default_factory=dict)
    """The highest bytes/s so far, by source."""
    path: tuple[str, ...] = ()
    receivers: int = 0
    dry: dict[str, int] = field(default_factory=dict)
    """The chunks that a source had when it had nothing new."""

    @property
    def name(self) -> str:
        return f"peer {self.identity}"

    @property
    def rate(self) -> float:
        lately = [sum(each.values()) for each in self.given[-10:]]
        return sum(lately) * CHUNK_BYTES / (len(lately) * ROUND_S) if lately else 0.0

    def tells(self) -> PeerReport:
        return told(self.identity, self.here, self.receivers, self.path, self.rate)

    def sees(self, name: str, tells: PeerReport | None) -> KnownSource:
        peers = [rate for source, rate in self.best.items() if source != "registry"]
        others = max(peers, default=0.0) if tells is not None else 0.0
        known_rate = self.best.get(name, 0.0)
        is_sending = any(each.get(name) for each in self.given[-3:])
        is_dry = tells is not None and self.dry.get(name) == tells.here
        speed = known_rate or others or 125e6
        return KnownSource(name, tells, ROUND_S, speed, known_rate, is_dry, is_sending)

    def roles(self, tell: dict[str, PeerReport]) -> Roles:
        candidates = [self.sees(f"peer {each}", tells) for each, tells in tell.items()]
        best = max((sum(each.values()) for each in self.given), default=0) * CHUNK_BYTES / ROUND_S
        ours = standing(
            self.here, identity=self.identity, upstream=self.upstream, rate=self.rate, best=best
        )
        return choose([*candidates, self.sees("registry", None)], ours)


class Simulation:
    """Rounds of ``ROUND_S``: each hears what all others told before the round, chooses, and gets
    what its own link and that of the source let through. A chunk goes through the whole chain in
    a round, as it is passed on at once."""

    def __init__(self, identities: str) -> None:
        self.receivers = [Receiver(each) for each in identities]
        self.of_registry: list[int] = []
        """The chunks that the registry gave in each round."""

    @property
    def alive(self) -> list[Receiver]:
        return [each for each in self.receivers if not each.is_dead]

    def go_on(self) -> None:
        tell = {each.identity: each.tells() for each in self.alive}
        receivers = {each.name: each for each in self.alive}
        roles = {}
        for each in self.alive:
            others = {name: tells for name, tells in tell.items() if name != each.identity}
            roles[each.identity] = each.roles(others)
        for each in self.alive:
            each.upstream = roles[each.identity].upstream
            above = tell.get(each.upstream.removeprefix("peer "))
            each.path = () if above is None else (above.identity, *above.path)
            each.given.append({})
        room = dict.fromkeys((*receivers, "registry"), LINK_CHUNKS)
        moves = True
        while moves:  # four chunks at a time, to each in turn
            moves = False
            for each in self.alive:
                if sum(each.given[-1].values()) >= LINK_CHUNKS:
                    continue
                for name, allowed in roles[each.identity].allowed.items():
                    there = ALL if name == "registry" else receivers[name].here
                    run = next_run(WHOLE, allowed & there & ~each.here, min(4, room[name]), 1)
                    if run is None or not room[name]:
                        continue
                    each.here |= bits_of(run)
                    room[name] -= run.chunks
                    each.given[-1][name] = each.given[-1].get(name, 0) + run.chunks
                    moves = True
        self.of_registry.append(LINK_CHUNKS - room["registry"])
        for each in self.alive:
            each.receivers = sum(
                any(given.get(each.name) for given in other.given[-6:]) for other in self.alive
            )
            each.dry |= {
                f"peer {name}": tells.here
                for name, tells in tell.items()
                if roles.get(each.identity, NONE).allowed.get(f"peer {name}")
                and not each.given[-1].get(f"peer {name}")
            }
            for name, count in each.given[-1].items():
                rate = count * CHUNK_BYTES / ROUND_S
                each.best[name] = max(each.best.get(name, 0.0), rate)

    def check_no_cycle(self) -> None:
        above = {each.name: each.upstream for each in self.alive}
        for start in above:
            path = [start]
            while name := above.get(path[-1], ""):
                assert name not in path, (path, name)
                path.append(name)


@pytest.mark.parametrize("count", range(2, 7))
def test_receivers_that_come_together_form_one_chain_by_rank(count: int) -> None:
    """Only the first uses the registry, and each has one receiver at most."""
    identities = "abcdef"[:count]
    rounds = Simulation(identities)
    for number in range(20):
        rounds.go_on()
        rounds.check_no_cycle()
        if number >= 12:
            ups = [each.upstream for each in rounds.receivers]
            assert ups == ["", *(each.name for each in rounds.receivers[:-1])]
            users = [each for each in rounds.receivers if "registry" in each.given[-1]]
            assert users == rounds.receivers[:1]
            assert all(each.receivers <= 1 for each in rounds.receivers)
    for _ in range(40):
        rounds.go_on()
    assert all(each.here == ALL for each in rounds.receivers)
    assert sum(rounds.of_registry) <= 1.3 * COUNT


@pytest.mark.parametrize("count", range(2, 7))
def test_a_chain_goes_on_when_its_first_one_has_gone(count: int) -> None:
    rounds = Simulation("abcdef"[:count])
    for _ in range(12):
        rounds.go_on()
    rounds.receivers[0].is_dead = True
    for _ in range(5):
        rounds.go_on()
        rounds.check_no_cycle()
    assert "registry" in rounds.receivers[1].given[-1]
    for _ in range(60):
        rounds.go_on()
    assert all(each.here == ALL for each in rounds.alive)


def test_who_comes_late_is_behind_all_whatever_its_name() -> None:
    rounds = Simulation("bcd")
    for _ in range(12):
        rounds.go_on()
    rounds.receivers.append(Receiver("a"))
    for _ in range(4):
        rounds.go_on()
        rounds.check_no_cycle()
    assert all(each.upstream != "peer a" for each in rounds.receivers)
    assert "registry" not in rounds.receivers[-1].given[-1]


@pytest.mark.parametrize("seed", range(12))
def test_hosts_that_come_one_after_the_other_all_come_to_an_end(seed: int) -> None:
    """Two that change at once may each go behind the other: not for long."""
    source = random.Random(seed)
    coming_hosts = source.sample("abcdef", 6)
    rounds = Simulation(coming_hosts.pop())
    stuck = 0
    while coming_hosts or any(each.here != ALL for each in rounds.receivers):
        if coming_hosts and source.random() < 0.5:
            rounds.receivers.append(Receiver(coming_hosts.pop()))
        before = [each.here for each in rounds.receivers]
        rounds.go_on()
        moved = [each.here for each in rounds.receivers] != before
        stuck = 0 if moved or not any(each.here != ALL for each in rounds.receivers) else stuck + 1
        assert stuck < 5
        assert len(rounds.of_registry) < 120
    assert sum(rounds.of_registry) <= 1.6 * COUNT
