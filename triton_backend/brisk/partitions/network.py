"""Hosts and their links, and the rate at which each host gets a model's bytes.

Rates are of payload, in Mbit/s (10**6 bits). Every link is full duplex.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from brisk.errors import InvalidConfigurationError

HOP_LATENCY_S = 0.0003
"""The time of a hop between two hosts of a rack, in addition to that of the bytes: a message is
sent, received and answered."""

REGISTRY, OWN_COPY = "the registry", "its own copy"


@dataclass(frozen=True, slots=True)
class LinkedHost:
    """A host of the network, with the rate of its link."""

    link_mbit: float
    has_copy: bool = False
    """Whether the host already has the model's bytes."""


class Pull(NamedTuple):
    """One host's transfer of a part's bytes: its source and rate."""

    source: str
    """The name of the source."""
    mbit: float
    """The rate of the transfer."""
    sharers: int
    """The number of hosts that pull from the source at once."""
    is_full: bool
    """Whether the source's uplink, not the host's own link, sets the rate."""


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """Hosts and the sources of bytes. A host with a copy needs no bytes, and is a source for the
    others."""

    hosts: tuple[LinkedHost, ...]
    """The hosts, in the order in which parts are assigned to them."""
    registry_mbit: float
    """The uplink of the registry, shared by all hosts that pull from it at once."""
    peers_mbit: tuple[float, ...] = ()
    """The uplinks of further hosts that have the model and run no part of it."""
    hop_latency_s: float = HOP_LATENCY_S

    def __post_init__(self) -> None:
        """Raise InvalidConfigurationError if there is no host, or a rate or latency is invalid."""
        if not self.hosts:
            raise InvalidConfigurationError("a network of no hosts; expected one at least")
        links = [host.link_mbit for host in self.hosts]
        if not all(0 < mbit < math.inf for mbit in links):
            raise InvalidConfigurationError(
                f"links of {links} Mbit/s; expected finite rates above 0"
            )
        uplinks = [self.registry_mbit, *self.peers_mbit]
        if not all(mbit > 0 for mbit in uplinks):
            raise InvalidConfigurationError(
                f"uplinks of {uplinks} Mbit/s, the registry's first; expected rates above 0"
            )
        if not (math.isfinite(self.hop_latency_s) and self.hop_latency_s >= 0):
            raise InvalidConfigurationError(
                f"hops of {self.hop_latency_s} s; expected a finite time from 0 on"
            )

    @classmethod
    def alike(cls, hosts: int, link_mbit: float, registry_mbit: float) -> HostNetwork:
        """Return a network of ``hosts`` hosts with equal links."""
        return cls((LinkedHost(link_mbit),) * hosts, registry_mbit)

    def pulls(self, count: int) -> tuple[Pull, ...]:
        """Return the pulls of the first ``count`` hosts, which pull at the same time.

        Hosts are assigned to sources one by one, each to the source whose equal share would be
        largest; on a tie, to a peer before the registry. Hosts that share an uplink get equal
        shares of it, plus what slower links leave unused (max-min fairness, which TCP's flows come
        near). So a rate is a host's least: what finished shorter parts leave is not counted.
        """
        sources = [
            *((f"peer {index}", mbit) for index, mbit in enumerate(self.peers_mbit, 1)),
            *(
                (f"host {index}", host.link_mbit)
                for index, host in enumerate(self.hosts, 1)
                if host.has_copy
            ),
            (REGISTRY, self.registry_mbit),
        ]
        sharers: list[list[int]] = [[] for _ in sources]
        pulls = [Pull(OWN_COPY, math.inf, 1, False)] * count
        for index, host in enumerate(self.hosts[:count]):
            if not host.has_copy:
                shares = [
                    mbit / (len(sharing) + 1)
                    for (_, mbit), sharing in zip(sources, sharers, strict=True)
                ]
                sharers[shares.index(max(shares))].append(index)
        for (name, mbit), sharing in zip(sources, sharers, strict=True):
            left_mbit = mbit
            by_link = sorted(sharing, key=lambda index: self.hosts[index].link_mbit)
            for position, index in enumerate(by_link):
                share = left_mbit / (len(by_link) - position)
                link_mbit = self.hosts[index].link_mbit
                rate = min(share, link_mbit)
                left_mbit -= rate
                pulls[index] = Pull(name, rate, len(by_link), share < link_mbit)
        return tuple(pulls)

    def hop_mbit(self, sender: int, receiver: int) -> float:
        """Return the rate between two hosts in Mbit/s; hosts are numbered from 0."""
        return min(self.hosts[sender].link_mbit, self.hosts[receiver].link_mbit)


def transfer_s(transferred_bytes: float, mbit: float) -> float:
    """Return the seconds that so many bytes take at so many Mbit/s; 0 at an infinite rate."""
    return transferred_bytes * 8 / (mbit * 1e6)
