"""Links that are cut and mended, and the check of what they carry; their speeds are beside."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import pytest

from brisk.errors import InvalidConfigurationError
from brisk_bench.fleet.links import TOLERATED, Links, UnfitLinksError, flows
from brisk_bench.fleet.namespaces import Rack, port_of, rack
from brisk_bench.fleet.programs import HostProgram
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.hosts
hosted = pytest.mark.usefixtures("_any_rights")

TICK = """
import json, socket, sys, time
server = socket.create_server(("0.0.0.0", 0))
print(json.dumps({"port": server.getsockname()[1]}), flush=True)
connection, _ = server.accept()
for number in range(10**6):
    connection.sendall(number.to_bytes(4, "big"))
    time.sleep(0.01)
"""
READ = """
import json, socket, sys
SILENCE_S = 1.0
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
connection.settimeout(SILENCE_S)
print(json.dumps({"read": len(connection.recv(4))}), flush=True)
def read():
    try:
        while connection.recv(4096):
            pass
        return "the end"
    except OSError as error:
        return type(error).__name__
def connect():
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 4 * SILENCE_S)
        return "connected"
    except OSError as error:
        return type(error).__name__
print(json.dumps({"reading": read(), "connecting": connect()}), flush=True)
connection.settimeout(30)
sys.stdin.readline()
print(json.dumps({"read": len(connection.recv(4))}), flush=True)
"""


@pytest.fixture
def machines() -> Iterator[Rack]:
    with rack(["a", "b", "c", "d"]) as made:
        yield made


@hosted
def test_links_that_do_not_carry_their_rate_are_named_and_nothing_is_measured(
    machines: Rack,
) -> None:
    links = Links(machines)
    links.shape_all(100)
    shape = ["root", "tbf", "rate", "30mbit", "burst", "128k", "limit", "512k"]
    machines.run_on_switch(["tc", "qdisc", "replace", "dev", port_of(machines["c"]), *shape])
    with pytest.raises(UnfitLinksError, match=r"expected 0.9 to 0.99 of the rate: .*b to c: 2\d "):
        links.check(1, *TOLERATED)


@hosted
def test_links_that_carry_their_rate_pass() -> None:
    """At a rate at which a busy machine is no reason not to."""
    with rack(["a", "b"]) as machines:
        links = Links(machines)
        links.shape_all(40)
        found = links.check(3, *TOLERATED)
    assert [(each.senders, each.receivers) for each in found] == [
        (("a",), ("b",)),
        (("b",), ("a",)),
    ]
    assert all(TOLERATED[0] <= each.share <= TOLERATED[1] for each in found)


@hosted
def test_a_check_needs_rates_and_accepts_no_wider_bounds(machines: Rack) -> None:
    links = Links(machines)
    links.shape(machines["a"], 100)
    with pytest.raises(InvalidConfigurationError, match="links without a rate: b, c, d"):
        links.check()
    with pytest.raises(InvalidConfigurationError, match=r"expected bounds within 0\.9 to 0\.99"):
        links.check(least=0.5)
    with pytest.raises(InvalidConfigurationError, match="0 Mbit/s: expected a rate above 0"):
        links.shape(machines["a"], 0)


@hosted
def test_a_cut_link_hangs_until_the_reader_s_time_is_over_and_goes_on_when_mended(
    machines: Rack,
) -> None:
    links = Links(machines)
    links.shape_all(100)
    ticking = HostProgram(machines["a"], [sys.executable, "-c", TICK])
    with ticking:
        port = str(ticking.hear(PATIENCE_S)["port"])
        read = [sys.executable, "-c", READ, machines["a"].address, port]
        with HostProgram(machines["b"], read) as reader:
            assert reader.hear(PATIENCE_S) == {"read": 4}
            links.cut(machines["a"])
            assert reader.hear(PATIENCE_S) == {
                "reading": "TimeoutError",
                "connecting": "TimeoutError",
            }
            links.mend(machines["a"])
            reader.say()
            assert reader.hear(PATIENCE_S) == {"read": 4}


@hosted
def test_a_cut_link_parts_one_host_from_all_others_only(machines: Rack) -> None:
    links = Links(machines)
    links.shape_all(100)
    links.cut(machines["a"])
    for sender, receiver in itertools.pairwise(["b", "c", "d"]):
        assert links._carry([sender], [receiver]) > 10


def test_hosts_of_one_rate_are_measured_in_a_ring() -> None:
    assert flows({"a": 500, "b": 500, "c": 500}) == [
        (("a",), ("b",)),
        (("c",), ("a",)),
        (("b",), ("c",)),
    ]
    assert flows({"a": 500}) == []


def test_a_fast_link_is_loaded_by_as_many_hosts_as_it_takes() -> None:
    found = flows({"registry": 1000, "a": 500, "b": 500, "c": 500})
    assert (("registry",), ("a", "b")) in found
    assert (("c", "b"), ("registry",)) in found
    assert (("c",), ("registry",)) in found
    every = {"registry", "a", "b", "c"}
    assert {name for senders, _ in found for name in senders} == every
    assert {name for _, receivers in found for name in receivers} == every
