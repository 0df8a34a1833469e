"""Hosts that pull a model from each other: how soon the last one has it, what that asks of the
registry, and what a host that goes costs. Links have 8 MB/s, the model 16.3 MB; nothing here takes
the time that it tells of.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from brisk.copies.manifest import Range
from brisk.sourcing.lanes import Supplier
from brisk.sourcing.policies.patience import LATE_S, NEXT_BYTE_S
from support.remote import virtual_hosts
from support.remote.published import Published, publish
from support.remote.virtual_hosts import Link, VirtualHost, VirtualRegistry
from support.virtual_loop import run_virtually

RATE = 8e6
LONGEST_S = 120.0
SLOW_WRITE_S = NEXT_BYTE_S + 1.0
Event = Callable[[], Awaitable[None]]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish(tmp_path_factory.mktemp("p"), 16_000_000, chunk_bytes=1 << 16)


def ideal_s(published: Published) -> float:
    """Return the time that all bytes take over one link."""
    return sum(map(len, published.contents)) / RATE


def hosts_in(
    folder: Path, published: Published, count: int, answer_s: float = 0.001
) -> list[VirtualHost]:
    return [
        VirtualHost(f"host{number}", folder, published, RATE, answer_s) for number in range(count)
    ]


def registry_of(published: Published, bytes_per_s: float = RATE) -> VirtualRegistry:
    return VirtualRegistry(published, bytes_per_s, Link(bytes_per_s))


async def pull(
    hosts: Sequence[VirtualHost],
    registry: VirtualRegistry | None,
    receivers: Sequence[VirtualHost],
    *,
    stagger_s: float = 0.0,
    event: Event | None = None,
) -> None:
    """Until all ``receivers`` that live have all; they start ``stagger_s`` after each other."""
    waiting = []
    for host in receivers:
        host.start(registry, [each for each in hosts if each is not host])
        waiting.append(asyncio.create_task(host.wait()))
        await asyncio.sleep(stagger_s)
    if event is not None:
        await event()
    done = asyncio.gather(
        *(each for each, host in zip(waiting, receivers, strict=True) if not host.is_cut)
    )
    await asyncio.wait_for(done, LONGEST_S)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for host in hosts:
        await host.close()


def is_of_half(odd: int, index: int) -> bool:
    return index % 2 == odd


def check_whole(published: Published, hosts: Sequence[VirtualHost]) -> None:
    for host in hosts:
        for number in published.manifest.own:
            path = host.copy_path(number)
            assert path.read_bytes() == published.contents[number]


@pytest.mark.parametrize(
    ("count", "stagger_s", "answer_s"),
    [
        (1, 0.0, 0.001),
        (2, 0.02, 0.02),
        (4, 0.0, 0.001),
        (4, 0.02, 0.02),
        (4, 0.3, 0.001),
        (8, 0.0, 0.02),
        (8, 0.3, 0.001),
    ],
)
def test_receivers_that_come_together_form_a_chain_behind_the_registry(
    tmp_path: Path, published: Published, count: int, stagger_s: float, answer_s: float
) -> None:
    hosts = hosts_in(tmp_path, published, count, answer_s)
    registry = registry_of(published)
    run_virtually(pull(hosts, registry, hosts, stagger_s=stagger_s))
    check_whole(published, hosts)
    last_s = max(host.done_s for host in hosts)
    best_s = ideal_s(published) + stagger_s * (count - 1)
    hops_s = (count - 1) * (answer_s + (1 << 16) / RATE)
    assert last_s < 1.04 * best_s + 1.5 * hops_s + 0.05
    assert registry.up.sent_bytes < 1.02 * ideal_s(published) * RATE


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (2, 0, 3, 1)])
def test_who_comes_first_may_have_any_name(
    tmp_path: Path, published: Published, order: tuple[int, ...]
) -> None:
    hosts = hosts_in(tmp_path, published, 4, 0.005)
    registry = registry_of(published)
    receivers = [hosts[number] for number in order]
    run_virtually(pull(hosts, registry, receivers, stagger_s=0.1))
    assert max(host.done_s for host in hosts) < 1.2 * ideal_s(published) + 0.3
    assert registry.up.sent_bytes < 1.08 * ideal_s(published) * RATE


@pytest.mark.parametrize("seed", range(3))
def test_hosts_that_come_one_after_the_other_all_come_to_an_end(
    tmp_path: Path, published: Published, seed: int
) -> None:
    """Two that change at once may each go behind the other: not for long."""
    source = random.Random(seed)
    hosts = hosts_in(tmp_path, published, 6, 0.005)
    registry, stagger_s = registry_of(published), source.uniform(0.1, 0.5)
    run_virtually(pull(hosts, registry, source.sample(hosts, 6), stagger_s=stagger_s))
    check_whole(published, hosts)
    assert max(host.done_s for host in hosts) < 2.0 * ideal_s(published) + 5 * stagger_s
    assert registry.up.sent_bytes < 1.2 * ideal_s(published) * RATE


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_host_that_dies_half_way_costs_the_others_no_third_of_a_second(
    tmp_path: Path, published: Published, number: int
) -> None:
    hosts = hosts_in(tmp_path, published, 4)
    registry = registry_of(published)

    async def die() -> None:
        await asyncio.sleep(1.0)
        await hosts[number].die()

    run_virtually(pull(hosts, registry, hosts, event=die))
    living = [host for host in hosts if not host.is_dead]
    check_whole(published, living)
    assert max(host.done_s for host in living) < 1.02 * ideal_s(published) + 0.3


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_link_that_is_cut_half_way_costs_the_others_no_second(
    tmp_path: Path, published: Published, number: int
) -> None:
    hosts = hosts_in(tmp_path, published, 4)
    registry = registry_of(published)

    async def cut() -> None:
        await asyncio.sleep(1.0)
        await hosts[number].cut()

    run_virtually(pull(hosts, registry, hosts, event=cut))
    living = [host for host in hosts if not host.is_cut]
    check_whole(published, living)
    assert max(host.done_s for host in living) < 1.02 * ideal_s(published) + 1.0


def test_a_peer_that_has_all_spares_the_registry(tmp_path: Path, published: Published) -> None:
    hosts = hosts_in(tmp_path, published, 5)
    registry = registry_of(published)
    hosts[4].fill(published)

    async def run() -> None:
        hosts[4].serve()
        await pull(hosts, registry, hosts[:4])

    run_virtually(run())
    assert registry.up.sent_bytes == 0
    assert max(host.done_s for host in hosts[:4]) < 1.05 * ideal_s(published)


def test_two_that_have_a_half_each_complete_each_other(
    tmp_path: Path, published: Published
) -> None:
    hosts = hosts_in(tmp_path, published, 2)
    for odd, host in enumerate(hosts):
        host.fill(published, partial(is_of_half, odd))
    run_virtually(pull(hosts, None, hosts))
    check_whole(published, hosts)
    assert max(host.done_s for host in hosts) < 0.6 * ideal_s(published)


def test_a_registry_that_goes_half_way_is_replaced_by_a_peer_that_has_the_rest(
    tmp_path: Path, published: Published
) -> None:
    hosts = hosts_in(tmp_path, published, 3)
    registry = registry_of(published)
    hosts[2].fill(published)

    async def go() -> None:
        await asyncio.sleep(1.0)
        registry.go()
        hosts[2].serve()

    run_virtually(pull(hosts, registry, hosts[:2], event=go))
    check_whole(published, hosts)
    assert max(host.done_s for host in hosts[:2]) < 1.02 * ideal_s(published) + 0.5


def test_a_slow_peer_is_left_for_a_fast_one(tmp_path: Path, published: Published) -> None:
    """It gives a tenth of what it gave from the first second on."""
    hosts = hosts_in(tmp_path, published, 3)
    for host in hosts[1:]:
        host.fill(published)

    async def run() -> None:
        for host in hosts[1:]:
            host.serve()
        hosts[0].start(None, hosts[1:])
        waiting = asyncio.create_task(hosts[0].wait())
        await asyncio.sleep(1.0)
        assert hosts[0].supply is not None
        slow = next(host for host in hosts if hosts[0].supply.upstream == f"peer {host.name}")
        slow.up.bytes_per_s = RATE / 10
        await asyncio.wait_for(waiting, LONGEST_S)
        for host in hosts:
            await host.close()

    run_virtually(run())
    assert hosts[0].done_s < ideal_s(published) + 3.5


def test_hosts_that_await_different_parts_get_those_first_and_complete_each_other(
    tmp_path: Path, published: Published
) -> None:
    """Four hosts, a quarter of the model each, from a registry with four times a host's link;
    then a ring (Flashpoint 4.2.5's completion, from each other)."""
    hosts = hosts_in(tmp_path, published, 4)
    registry = registry_of(published, 4 * RATE)
    quarter = published.manifest.files[0].size // 4
    own_s = [0.0] * 4

    async def receive(number: int) -> None:
        fetch = hosts[number].fetch
        assert fetch is not None
        async for _ in fetch.wait_for([Range(0, number * quarter, quarter)], str):
            pass
        own_s[number] = asyncio.get_running_loop().time()
        await hosts[number].wait()

    async def run() -> None:
        for host in hosts:
            host.start(registry, [each for each in hosts if each is not host])
        parts = asyncio.gather(*map(receive, range(4)))
        await asyncio.wait_for(parts, LONGEST_S)
        for host in hosts:
            await host.close()

    run_virtually(run())
    check_whole(published, hosts)
    assert max(own_s) < 2.0 * ideal_s(published) / 4
    assert max(host.done_s for host in hosts) < 1.5 * ideal_s(published)
    assert registry.up.sent_bytes < 1.3 * ideal_s(published) * RATE


@pytest.fixture(scope="module")
def in_long_chunks(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish(tmp_path_factory.mktemp("p"), 16_000_000, chunk_bytes=1 << 18)


class TricklingRegistry(VirtualRegistry):
    """A registry with a link of its own to the host: it takes nothing of other links."""

    def __init__(self, published: Published, bytes_per_s: float, name: str = "registry") -> None:
        super().__init__(published, bytes_per_s, Link(RATE))
        self.name = name

    def for_host(self, down: Link) -> VirtualRegistry:
        return self


@pytest.mark.parametrize("trickler", ["registry", "peer"])
def test_a_source_that_trickles_does_not_keep_its_chunk_from_one_that_has_it(
    tmp_path: Path, in_long_chunks: Published, trickler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After half a second it sends too little to be of use, and too often to count as silent: a
    chunk takes half a minute."""
    monkeypatch.setattr(virtual_hosts, "PIECE_BYTES", 1 << 11)
    host, peer, other = hosts_in(tmp_path, in_long_chunks, 3)
    for each in (peer, other):
        each.fill(in_long_chunks)
    registry = TricklingRegistry(in_long_chunks, RATE) if trickler == "registry" else None

    async def run() -> None:
        if registry is None:
            peer.serve()
        host.start(registry, [peer, other])
        waiting = asyncio.create_task(host.wait())
        await asyncio.sleep(0.5)
        if registry is None:
            peer.up.bytes_per_s = 8_000
            other.serve()
        else:
            registry.up.bytes_per_s = 8_000
            peer.serve()
        await asyncio.wait_for(waiting, LONGEST_S)
        for each in (host, peer, other):
            await each.close()

    run_virtually(run())
    check_whole(in_long_chunks, [host])
    assert host.done_s < 0.5 + ideal_s(in_long_chunks) + LATE_S + 2.0


def test_a_chunk_that_trickles_from_all_sources_comes_in_the_end(
    tmp_path: Path, in_long_chunks: Published
) -> None:
    """A chunk takes 40 s from either registry, and each was expected to be fast."""
    (host,) = hosts_in(tmp_path, in_long_chunks, 1)
    one, other = (TricklingRegistry(in_long_chunks, 6_500, name) for name in ("one", "other"))

    async def run() -> None:
        host.start(one, [])
        assert host.fetch is not None
        assert host.supply is not None
        clock = asyncio.get_running_loop().time
        host.supply.suppliers.append(Supplier(other, host.supply, clock))
        while host.fetch.here.bit_count() < 4:
            await host.fetch.arrived.wait(1.0)
        assert clock() < 4 * 40.0
        assert host.supply.suppliers[0].late or host.supply.suppliers[1].late
        await host.close()

    run_virtually(run())


class SlowDisk(virtual_hosts.AtOnce):
    """Of which each write is known to be done some seconds later."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done, late = super().submit(fn, *args, **kwargs), Future[Any]()
        asyncio.get_running_loop().call_later(SLOW_WRITE_S, late.set_result, done.result())
        return late


@pytest.mark.parametrize("is_of_peer", [True, False])
def test_a_source_is_not_silent_while_what_it_sent_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_of_peer: bool
) -> None:
    published = publish(tmp_path / "p", 8_000_000, chunk_bytes=1 << 21)  # written by threads
    peer, receiver = hosts_in(tmp_path, published, 2)
    receiver.executor = SlowDisk()
    left: list[str] = []
    monkeypatch.setattr(Supplier, "leave", lambda each, portion, problem: left.append(problem))

    async def scenario() -> None:
        if is_of_peer:
            peer.fill(published)
            peer.serve()
        others = [peer, receiver] if is_of_peer else [receiver]
        await pull(others, None if is_of_peer else registry_of(published), [receiver])

    run_virtually(scenario())
    check_whole(published, [receiver])
    assert receiver.done_s > SLOW_WRITE_S
    assert not left
