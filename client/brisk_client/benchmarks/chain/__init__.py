"""`brisk bench chain`: how soon a model's bytes are on several hosts that have none.

Five hosts, network namespaces of this machine with a shaped link each; the first has the bytes.
Sides, in turns: Brisk's couriers, which take from each other what they have so far, over mutual
TLS and with every chunk's digest compared (``chain``); the first host sends to each at once over
plain TCP (``unicast``); libtorrent, where a Python has it (``--libtorrent PYTHON``). With
``--faults``, also couriers of which the one in the middle is killed, or its link cut, half-way.
The least that any side can take is the bytes over what a link carries, which is measured first.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from brisk_client.benchmarks.chain.side import CUT, KILLED, Chain
from brisk_client.benchmarks.harness.command_line import bars, benchmark_parser, run_command
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.fleet.links import Links
from brisk_client.fleet.namespaces import rack
from brisk_client.fleet.transfers import Swarm, TransferSide, Unicast, optimum_s
from brisk_client.report import Report, check_limit

RECEIVERS = 4
RATE_MBIT_S = 500.0
MEGABYTES = 100

MOST_OVER = 1.10
"""Times the least: with TLS and digests."""

LEAST_UNICAST = 3.5
MOST_KILLED_S, MOST_CUT_S = 0.3, 1.0

NOTES = (
    "seconds: from the common start to the last receiver's last byte; over: that over the least "
    "that the links allow; cpu: processor time of the side's processes, but for the web server's. "
    "Medians over rounds",
    "all hosts share this machine's processors; no latency of a network, no loss",
)


def run(
    quick: bool = False,
    faults: bool = False,
    megabytes: int = MEGABYTES,
    rate: float = RATE_MBIT_S,
    rounds: int = 0,
    libtorrent: Path | None = None,
) -> Report:
    """Measure. ``rate``: of each link, Mbit/s. ``libtorrent``: a Python that has it.

    Raises NoNamespacesError where hosts cannot be made, UnfitLinksError where links do not carry
    what they should, NoLibtorrentError.
    """
    report = new_report("chain", ("aiohttp", "cryptography"), NOTES, threads="all")
    names = ["source", *(f"r{number}" for number in range(1, RECEIVERS + 1))]
    with rack(names) as machines, tempfile.TemporaryDirectory(prefix="brisk-chain-") as name:
        links = Links(machines)
        links.shape_all(rate)
        carried = links.check()
        payload = statistics.median(each.payload_mbit_s for each in carried)
        report.notes.append(f"links of {rate:g} Mbit/s carry {payload:.0f}")
        file = Path(name) / "bytes"
        file.write_bytes(os.urandom(megabytes * 1_000_000))
        least_s = optimum_s(file.stat().st_size, payload)
        sides: list[TransferSide] = [Chain(links, Path(name)), Unicast(Path(name))]
        if libtorrent is not None:
            sides.append(Swarm(libtorrent, Path(name)))
        if faults:
            sides += [Chain(links, Path(name), KILLED), Chain(links, Path(name), CUT)]
        took: dict[str, list[tuple[float, float]]] = {side.name: [] for side in sides}
        for number in range(rounds or (2 if quick else 5)):
            for side in sides if number % 2 == 0 else sides[::-1]:
                done = side.run(machines.hosts, file)
                took[side.name].append((done.seconds, done.processor_s))
        for side_name, done_all in took.items():
            seconds = statistics.median(each for each, _ in done_all)
            report.rows.append(
                {
                    "side": side_name,
                    "seconds": seconds,
                    "spread_s": max(done_all)[0] - min(done_all)[0],
                    "least_s": least_s,
                    "over": seconds / least_s,
                    "cpu_s": statistics.median(each for _, each in done_all),
                }
            )
    add_checks(report)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("chain", __doc__, "two rounds")
    parser.add_argument("--faults", action="store_true", help="kill a host, cut a link")
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    parser.add_argument("--rate", type=float, default=RATE_MBIT_S, help="of each link, Mbit/s")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--libtorrent", type=Path, metavar="PYTHON", help="that has libtorrent")
    return run_command(parser, arguments, run, bars("seconds", "side", "side"))


def add_checks(report: Report) -> None:
    """Every check from the rows."""
    rows = {row["side"]: row for row in report.rows}
    chain = rows["chain"]
    text = f"chain to {RECEIVERS} hosts over the least, with TLS and digests"
    report.checks.append(check_limit(text, chain["over"], "<=", MOST_OVER, digits=3))
    for name, least in (("unicast", LEAST_UNICAST), ("libtorrent", 1.0)):
        if name in rows:
            ratio = rows[name]["seconds"] / chain["seconds"]
            report.checks.append(check_limit(f"{name} over chain", ratio, ">=", least, digits=2))
    for fault, most_s in ((KILLED, MOST_KILLED_S), (CUT, MOST_CUT_S)):
        row = rows.get(f"chain, one {fault}")
        if row is not None:
            more_s = row["seconds"] - chain["seconds"]
            text = f"the others, one host {fault} half-way: seconds more"
            report.checks.append(check_limit(text, more_s, "<=", most_s, digits=2))
