"""The choice of who gives which chunks, and who stands before whom."""

from __future__ import annotations

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
    here: int = 0, *, upstream: str = "", rate: float = FAST, urgent: int = 0
) -> ReceiverState:
    return ReceiverState("m", here, ALL & ~here, WHOLE, urgent, CHUNK_BYTES, rate, FAST, upstream)


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
