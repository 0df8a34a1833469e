"""Links of a rack's hosts: shaped at both ends, cut and mended, and checked before a measurement.

A token bucket (tbf) at the host's end shapes what it sends, one at the switch's what it receives.
Rates are megabits (10^6) of Ethernet frames a second; TCP carries 1448 of each 1514 bytes, 0.956.
There is no delay and no loss but by full queues.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brisk.errors import InvalidConfigurationError, UnavailableError
from brisk_bench.fleet import tcp_streams
from brisk_bench.fleet.namespaces import INTERFACE, NamespaceHost, Rack, port_of
from brisk_bench.fleet.programs import HostProgram

BULK_BURST_BYTES = 128 * 1024
"""The burst for long transfers. A message up to this size passes an idle link unshaped."""
SMALL_BURST_BYTES = 16 * 1024
"""The burst where messages are timed. It takes the more processor time the higher the rate."""

PROMISED = (0.93, 0.97)
TOLERATED = (0.90, 0.99)
"""Shares of a link's rate, least and most: PROMISED, which TCP should carry by default, and
TOLERATED, the widest bounds that ``check`` takes."""

_QUEUE_S = 0.01
_LEAST_QUEUE_BYTES = 256 * 1024
_WARM_UP_S = 0.25
_WINDOW_S = 0.5
_CONNECT_S = 0.05
_PATIENCE_S = 20.0

_DISABLED, _FORWARDING = 0, 3
"""The kernel's numbers of two states of a bridge's port."""


class UnfitLinksError(UnavailableError):
    """Links do not carry what they should, so nothing is to be measured over them."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Payload that TCP carried between hosts at once, in Mbit/s, and the rate of the link.

    One side is one host, whose link is measured; the other is as many as it takes to load it.
    """

    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    rate_mbit_s: float
    rounds_mbit_s: tuple[float, ...]

    @property
    def payload_mbit_s(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds_mbit_s)

    @property
    def share(self) -> float:
        """The payload as a share of the rate."""
        return self.payload_mbit_s / self.rate_mbit_s

    def __str__(self) -> str:
        way = f"{', '.join(self.senders)} to {', '.join(self.receivers)}"
        rates = f"{self.payload_mbit_s:.0f} of {self.rate_mbit_s:g} Mbit/s"
        return f"{way}: {rates} ({self.share:.3f})"


class Links:
    """The links of a rack. They are not shaped until ``shape`` is called."""

    def __init__(self, machines: Rack) -> None:
        self._rack = machines
        self._rates: dict[str, float] = {}

    @property
    def slowest_mbit_s(self) -> float:
        """The least rate of any link that has one."""
        return min(self._rates.values())

    def shape(
        self, host: NamespaceHost, rate_mbit_s: float, burst_bytes: int = BULK_BURST_BYTES
    ) -> None:
        """Give a host's link this rate in both directions, now; connections go on.

        Raises InvalidConfigurationError for a rate that is not above 0.
        """
        if not rate_mbit_s > 0:
            raise InvalidConfigurationError(f"{rate_mbit_s:g} Mbit/s: expected a rate above 0")
        rate_bytes_s = rate_mbit_s * 1e6 / 8
        limit = max(_LEAST_QUEUE_BYTES, round(rate_bytes_s * _QUEUE_S)) + burst_bytes
        shape = f"rate {round(rate_mbit_s * 1e6)}bit burst {burst_bytes} limit {limit}"
        host.run(_qdisc(INTERFACE, shape))
        self._rack.run_on_switch(_qdisc(port_of(host), shape))
        self._rates[host.name] = rate_mbit_s

    def shape_all(self, rate_mbit_s: float, burst_bytes: int = BULK_BURST_BYTES) -> None:
        """Give every host's link this rate."""
        for host in self._rack.hosts:
            self.shape(host, rate_mbit_s, burst_bytes)

    def cut(self, host: NamespaceHost) -> None:
        """Make the switch drop all packets from and to this host silently, from now on.

        Its interface stays up and connections stay open: a reader of one hangs. What is in the
        host's queue on its way down still arrives.
        """
        self._set_state(host, _DISABLED)

    def mend(self, host: NamespaceHost) -> None:
        """Let packets pass again. Connections go on at TCP's next attempt to send."""
        self._set_state(host, _FORWARDING)

    def measure(self, rounds: int = 3) -> list[Carried]:
        """Measure what each link carries in each direction, by rounds of half a second.

        The measurements run one after the other. Raises InvalidConfigurationError if a link has no
        rate.
        """
        if missing := [host.name for host in self._rack.hosts if host.name not in self._rates]:
            raise InvalidConfigurationError(f"links without a rate: {', '.join(missing)}")
        measurements = []
        for senders, receivers in flows(self._rates):
            rate = min(sum(self._rates[name] for name in side) for side in (senders, receivers))
            carried = tuple(self._carry(senders, receivers) for _ in range(rounds))
            measurements.append(Carried(senders, receivers, rate, carried))
        return measurements

    def check(
        self, rounds: int = 3, least: float = PROMISED[0], most: float = PROMISED[1]
    ) -> list[Carried]:
        """Measure as ``measure`` does, and fail if links do not carry what they should.

        Raises UnfitLinksError, which names all such links, if a median is not within ``least`` to
        ``most`` of the rate, and InvalidConfigurationError if these are wider than TOLERATED.
        """
        if least < TOLERATED[0] or most > TOLERATED[1]:
            raise InvalidConfigurationError(
                f"links may carry {least:g} to {most:g} of their rate: expected bounds within "
                f"{TOLERATED[0]:g} to {TOLERATED[1]:g}"
            )
        measurements = self.measure(rounds)
        if unfit := [each for each in measurements if not least <= each.share <= most]:
            listed = "; ".join(map(str, unfit))
            raise UnfitLinksError(f"expected {least:g} to {most:g} of the rate: {listed}")
        return measurements

    def _carry(self, senders: Sequence[str], receivers: Sequence[str]) -> float:
        """Return Mbit/s of payload from all senders to all receivers at once, paired by
        connections."""
        pairs = [(self._rack[a], self._rack[b]) for a in senders for b in receivers]
        with contextlib.ExitStack() as stack:
            counting = [stack.enter_context(_program(to, "count")) for _, to in pairs]
            ports = [program.hear(_PATIENCE_S)["port"] for program in counting]
            begin_s = time.monotonic() + _CONNECT_S * (1 + len(pairs)) + _WARM_UP_S
            for program in counting:
                program.say(
                    begin_ns=round(begin_s * 1e9), end_ns=round((begin_s + _WINDOW_S) * 1e9)
                )
            for (sender, receiver), port in zip(pairs, ports, strict=True):
                stack.enter_context(_program(sender, "flood", receiver.address, str(port)))
            heard = [program.hear(_PATIENCE_S) for program in counting]
        # a program that began to count after the window has counted nothing
        return sum(each["bytes"] * 8e-6 / each["seconds"] for each in heard if each["seconds"])

    def _set_state(self, host: NamespaceHost, state: int) -> None:
        self._rack.run_on_switch(
            ["bridge", "link", "set", "dev", port_of(host), "state", str(state)]
        )


def flows(rates: Mapping[str, float]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return senders and receivers of measurements that together load each link in each direction.

    A host's link is loaded by the next hosts, as many as it takes to reach its rate: if all rates
    are equal, a ring. ``rates`` in Mbit/s by host; one host alone has no flow.
    """
    names = list(rates)
    all_flows: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for position, name in enumerate(names):
        after = names[position + 1 :] + names[:position]
        all_flows.append(((name,), _reaching(after, rates, rates[name])))
        all_flows.append((_reaching(after[::-1], rates, rates[name]), (name,)))
    return [flow for flow in dict.fromkeys(all_flows) if all(flow)]


def _reaching(names: Sequence[str], rates: Mapping[str, float], rate: float) -> tuple[str, ...]:
    """Return the first name whose rate is at least ``rate``.

    Without one: names from the fastest on until the sum of their rates is.
    """
    for name in names:
        if rates[name] >= rate:
            return (name,)
    chosen: list[str] = []
    for name in sorted(names, key=lambda each: -rates[each]):
        if sum(rates[each] for each in chosen) >= rate:
            break
        chosen.append(name)
    return tuple(chosen)


def _qdisc(interface: str, shape: str) -> list[str]:
    return ["tc", "qdisc", "replace", "dev", interface, "root", "tbf", *shape.split()]


def _program(host: NamespaceHost, *words: str) -> HostProgram:
    return HostProgram(host, [sys.executable, "-I", tcp_streams.__file__, *words])
