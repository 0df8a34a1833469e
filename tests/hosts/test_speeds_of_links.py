"""What shaped links carry, and in what time; what compares no times is in ``test_links``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk_bench.fleet.links import SMALL_BURST_BYTES, TOLERATED, Links
from brisk_bench.fleet.namespaces import Rack, rack
from brisk_bench.fleet.transfers import Unicast, optimum_s
from support.waiting import TIMED

pytestmark = [pytest.mark.hosts, pytest.mark.timing]
hosted = pytest.mark.usefixtures("_any_rights")


@pytest.fixture
def machines() -> Iterator[Rack]:
    with rack(["a", "b", "c", "d"]) as made:
        yield made


@hosted
@pytest.mark.parametrize(("rate_mbit_s", "rounds"), [(100, 1), (200, 3)])
def test_every_link_carries_its_rate_in_both_directions(rate_mbit_s: float, rounds: int) -> None:
    with rack(["a", "b", "c"]) as machines:
        links = Links(machines)
        links.shape_all(rate_mbit_s)
        found = links.measure(rounds)
    ring = [("a", "b"), ("b", "c"), ("c", "a")]
    assert sorted((each.senders[0], each.receivers[0]) for each in found) == ring
    assert {each.rate_mbit_s for each in found} == {rate_mbit_s}
    for each in found:
        assert each.share <= TOLERATED[1], each  # it is shaped, whatever else runs here
        with TIMED:
            assert each.share >= 0.8, each


@hosted
def test_a_rate_can_be_changed_later(machines: Rack) -> None:
    links = Links(machines)
    links.shape_all(400)
    links.shape(machines["b"], 50)
    slow = {(each.senders, each.receivers): each for each in links.measure(rounds=1)}
    assert slow[("b",), ("c",)].payload_mbit_s < 50
    assert slow[("a",), ("b",)].rate_mbit_s == 50
    links.shape(machines["b"], 400)
    for each in links.measure(rounds=1):
        with TIMED:
            assert each.payload_mbit_s > 200, each


@hosted
def test_three_unicasts_share_the_uplink(machines: Rack, tmp_path: Path) -> None:
    links = Links(machines)
    links.shape_all(200)
    file = written(tmp_path, 5_000_000)
    transfer = Unicast(tmp_path).run(machines.hosts, file)
    shared_s = 3 * optimum_s(5_000_000, 200)
    assert transfer.seconds > 0.9 * shared_s  # less what the buckets hold at first
    with TIMED:
        assert transfer.seconds < 1.5 * shared_s


@hosted
def test_a_small_message_takes_its_time_where_the_burst_is_small(
    machines: Rack, tmp_path: Path
) -> None:
    """128 KB in the bucket let it pass unshaped: the trap that the small burst is for."""
    links = Links(machines)
    file = written(tmp_path, 100_000)
    seconds = {}
    for burst_bytes in (SMALL_BURST_BYTES, 128 * 1024):
        links.shape_all(20, burst_bytes)
        time.sleep(0.1)  # the buckets fill
        transfer = Unicast(tmp_path).run(machines.hosts[:2], file)
        seconds[burst_bytes] = transfer.seconds
    assert seconds[SMALL_BURST_BYTES] > optimum_s(100_000 - 2 * SMALL_BURST_BYTES, 20)
    with TIMED:
        assert seconds[128 * 1024] < optimum_s(100_000, 20) / 2


def written(folder: Path, size: int) -> Path:
    file = folder / "file"
    file.write_bytes(bytes(range(256)) * (size // 256) + bytes(size % 256))
    return file
