"""Transfers bring whole files, cannot beat their links, and say when they fail."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brisk.errors import InvalidRequestError, UnavailableError
from brisk_bench.fleet.links import Links
from brisk_bench.fleet.namespaces import Rack, rack
from brisk_bench.fleet.programs import HostProgram
from brisk_bench.fleet.transfers import NoLibtorrentError, Swarm, TransferSide, Unicast, optimum_s
from support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.timing, pytest.mark.beside]
hosted = pytest.mark.usefixtures("_any_rights")

SIZE_BYTES = 4_000_000


@pytest.fixture
def machines() -> Iterator[Rack]:
    with rack(["source", "a", "b"]) as made:
        Links(made).shape_all(200)
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "weights"
    made.write_bytes(os.urandom(SIZE_BYTES))
    return made


@hosted
@pytest.mark.parametrize("make", [Unicast, Swarm])
def test_a_side_brings_the_file_to_all_no_faster_than_the_link(
    make: Callable[[], TransferSide], machines: Rack, file: Path
) -> None:
    """That the bytes are equal, each side sees itself."""
    try:
        side = make()
    except NoLibtorrentError as error:
        pytest.skip(str(error))
    transfer = side.run(machines.hosts, file)
    assert transfer.seconds > 0.9 * optimum_s(SIZE_BYTES, 200)
    assert 0 < transfer.processor_s < 60
    assert [host.processes() for host in machines.hosts] == [[], [], []]


@hosted
def test_nothing_is_left_of_what_was_received(machines: Rack, file: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    Unicast(scratch).run(machines.hosts, file)
    assert list(scratch.iterdir()) == []


@hosted
def test_a_file_cut_short_under_way_is_an_error(machines: Rack, file: Path) -> None:
    Links(machines).shape_all(8)

    def cut_short() -> None:
        source = machines["source"]
        wait_until(
            lambda: sent(source.run(["ip", "-s", "link", "show", "eth0"])) > 200_000,
            "bytes on their way",
        )
        os.truncate(file, 1_000_000)

    thread = threading.Thread(target=cut_short)
    thread.start()
    with pytest.raises(UnavailableError, match=r"in [ab] ended with 1: .*bytes too early"):
        Unicast().run(machines.hosts, file)
    thread.join()
    assert [host.processes() for host in machines.hosts] == [[], [], []]


@hosted
def test_a_transfer_needs_a_receiver(machines: Rack, file: Path) -> None:
    with pytest.raises(InvalidRequestError, match="between 1 hosts: expected 2 or more"):
        Unicast().run(machines.hosts[:1], file)


@hosted
def test_a_program_that_says_nothing_is_waited_for_no_longer_than_told(machines: Rack) -> None:
    with (
        HostProgram(machines["a"], ["sleep", "600"]) as program,
        pytest.raises(TimeoutError, match=r"in a does not answer within 0\.1 s"),
    ):
        program.hear(0.1)
    assert machines["a"].processes() == []


@hosted
def test_a_program_that_fails_is_told_with_what_it_said(machines: Rack) -> None:
    failing = "import sys; sys.exit('no such weights')"
    with (
        HostProgram(machines["a"], [sys.executable, "-c", failing]) as program,
        pytest.raises(UnavailableError, match=r"in a ended with 1: no such weights"),
    ):
        program.hear(PATIENCE_S)


def test_an_interpreter_without_libtorrent_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoLibtorrentError, match="nowhere does not start"):
        Swarm(tmp_path / "nowhere")
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\necho \"No module named 'libtorrent'\" >&2; exit 1\n")
    without.chmod(0o755)
    with pytest.raises(NoLibtorrentError, match="has no libtorrent: No module named"):
        Swarm(without)


def test_the_optimum_is_the_bytes_over_the_rate() -> None:
    assert optimum_s(100_000_000, 500) == pytest.approx(1.6)


def sent(listed: str) -> int:
    """Bytes, from ``ip -s link``."""
    lines = listed.splitlines()
    (numbers,) = (after for line, after in itertools.pairwise(lines) if "TX:" in line)
    return int(numbers.split()[0])
