"""Ways to bring one file to many hosts, timed: the sides of a benchmark.

Every side does the same work: the file is whole at the first host, each other host ends with a
file of equal bytes, written in a folder of its own, and connections are made before the start. The
bytes are compared after the clock has stopped.
"""

from __future__ import annotations

import contextlib
import filecmp
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from brisk.errors import InternalError, InvalidRequestError, UnavailableError
from brisk_bench.fleet import tcp_streams
from brisk_bench.fleet.namespaces import NamespaceHost
from brisk_bench.fleet.programs import HostProgram

_TORRENT_PEER = Path(__file__).with_name("torrent_peer.py")  # which only its own Python can import
_START_TIME_OUT_S = 30.0
_TRANSFER_TIME_OUT_S = 300.0


class NoLibtorrentError(UnavailableError):
    """An interpreter has no libtorrent; a benchmark leaves the swarm out, with this reason."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The time it took to bring a file to all receivers, and its cost."""

    seconds: float
    """The time from the start until the last receiver has its last byte in its file."""
    processor_s: float
    """User and system time of all the side's processes on all hosts, from the start on. The
    kernel's network work outside of them is in none."""


class TransferSide(Protocol):
    """A way to bring a file from the first host to all others."""

    @property
    def name(self) -> str: ...

    def run(self, hosts: Sequence[NamespaceHost], file: Path) -> Transfer:
        """Bring ``file``, which only ``hosts[0]`` has, to the other hosts.

        Raises UnavailableError if a process of the side fails, TimeoutError if it hangs,
        InternalError if other bytes arrive.
        """
        ...


def optimum_s(size_bytes: int, payload_mbit_s: float) -> float:
    """Return the least time in which a file leaves its host once, which bounds every side.

    ``payload_mbit_s`` is what TCP carries over the slowest link (``Carried.payload_mbit_s``); with
    a link's rate in its place it is the bytes over the rate, which no TCP reaches.
    """
    return size_bytes * 8e-6 / payload_mbit_s


@dataclass(frozen=True, slots=True)
class Unicast:
    """A side whose first host sends to each other at once, by ``sendfile`` over plain TCP."""

    scratch: Path | None = None
    """The folder of the receivers' folders; None: the system's for temporary files."""

    @property
    def name(self) -> str:
        return "unicast"

    def run(self, hosts: Sequence[NamespaceHost], file: Path) -> Transfer:
        """See ``TransferSide.run``."""
        source, receivers = _ends(hosts)
        size = file.stat().st_size
        command = [sys.executable, "-I", tcp_streams.__file__]
        with _folders(receivers, file, self.scratch) as targets, contextlib.ExitStack() as stack:
            programs = [
                stack.enter_context(HostProgram(host, [*command, "receive", target, str(size)]))
                for host, target in zip(receivers, targets, strict=True)
            ]
            peers = [f"{each.host.address}:{_port(each)}" for each in programs]
            sender = HostProgram(source, [*command, "send", file, *peers])
            stack.enter_context(sender).hear(_START_TIME_OUT_S)
            begin_ns = time.monotonic_ns()
            sender.say()
            received = [program.hear(_TRANSFER_TIME_OUT_S) for program in programs]
            sent = sender.hear(_TRANSFER_TIME_OUT_S)
        return Transfer(
            seconds=(max(each["finished_ns"] for each in received) - begin_ns) / 1e9,
            processor_s=sum(each["processor_s"] for each in [sent, *received]),
        )


@dataclass(frozen=True, slots=True)
class Swarm:
    """libtorrent: pieces of 1 MiB, each fetched from any host that has it; hosts know all others.

    A fetcher has ended when it has, and has checked, all pieces; the last may not be written yet.
    """

    python: Path = Path(sys.executable)
    """An interpreter that has libtorrent, perhaps of another environment than this process's."""
    scratch: Path | None = None
    """The folder of the receivers' folders; None: the system's for temporary files."""

    def __post_init__(self) -> None:
        """Check ``python``. Raises NoLibtorrentError if it cannot import libtorrent."""
        command = [str(self.python), "-I", "-c", "import libtorrent"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_START_TIME_OUT_S
            )
        except OSError as error:
            raise NoLibtorrentError(f"{self.python} does not start: {error}") from error
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise NoLibtorrentError(f"{self.python} has no libtorrent: {last}")

    @property
    def name(self) -> str:
        return "libtorrent"

    def run(self, hosts: Sequence[NamespaceHost], file: Path) -> Transfer:
        """See ``TransferSide.run``."""
        source, receivers = _ends(hosts)
        command = [str(self.python), "-I", str(_TORRENT_PEER)]
        with (
            _folders(receivers, file, self.scratch) as targets,
            tempfile.TemporaryDirectory(prefix="brisk-torrent-") as folder,
            contextlib.ExitStack() as stack,
        ):
            torrent = str(Path(folder, "torrent"))
            seeder = stack.enter_context(
                HostProgram(source, [*command, "seed", str(file), torrent, source.address])
            )
            peers = [(source.address, _port(seeder))]
            fetchers = []
            for host, target in zip(receivers, targets, strict=True):
                program = HostProgram(
                    host, [*command, "fetch", str(target.parent), torrent, host.address]
                )
                fetchers.append(stack.enter_context(program))
                peers.append((host.address, _port(program)))
            programs = [seeder, *fetchers]
            for position, program in enumerate(programs):
                program.say(peers=peers[:position], wanted=len(receivers))
            for program in programs:
                program.hear(_START_TIME_OUT_S)
            begin_ns = time.monotonic_ns()
            for program in programs:
                program.say()
            finished = [program.hear(_TRANSFER_TIME_OUT_S)["finished_ns"] for program in fetchers]
            for program in programs:
                program.say()
            costs = [program.hear(_START_TIME_OUT_S)["processor_s"] for program in programs]
            for program in programs:
                program.process.wait(_START_TIME_OUT_S)  # libtorrent may still write
        return Transfer(seconds=(max(finished) - begin_ns) / 1e9, processor_s=sum(costs))


def _ends(hosts: Sequence[NamespaceHost]) -> tuple[NamespaceHost, Sequence[NamespaceHost]]:
    if len(hosts) < 2:
        raise InvalidRequestError(f"a transfer between {len(hosts)} hosts: expected 2 or more")
    return hosts[0], hosts[1:]


@contextlib.contextmanager
def _folders(
    receivers: Sequence[NamespaceHost], file: Path, scratch: Path | None
) -> Iterator[list[Path]]:
    """Give the file that each receiver is to write, in a folder of its own, removed in the end.

    Raises InternalError if a file has other bytes than ``file`` after the block.
    """
    with tempfile.TemporaryDirectory(prefix="brisk-transfer-", dir=scratch) as folder:
        targets = [Path(folder, host.name, file.name) for host in receivers]
        for target in targets:
            target.parent.mkdir()
        yield targets
        for host, target in zip(receivers, targets, strict=True):
            if not target.exists() or not filecmp.cmp(file, target, shallow=False):
                raise InternalError(f"{host.name} has other bytes than {file}")


def _port(program: HostProgram) -> int:
    return int(program.hear(_START_TIME_OUT_S)["port"])
