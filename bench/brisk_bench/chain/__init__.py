"""`brisk bench chain`: how soon a model's bytes are on several hosts that have none.

Up to five hosts, network namespaces of this machine with a shaped link each; the first has the
bytes, and one to four others are to have them (Flashpoint, figures 6.1 and 8.8). Sides, in turns:
Brisk's couriers, which take from each other what they have so far, over mutual TLS and with every
chunk's digest compared (``chain``); the first host sends to each at once over plain TCP
(``unicast``); libtorrent, where a Python has it (``--libtorrent PYTHON``). With ``--faults``, also
four couriers of which the one in the middle is killed, or its link cut, half-way. The least that
any side can take is the bytes over what a link carries, which is measured first.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from brisk_bench.chain.side import CUT, KILLED, Chain
from brisk_bench.fleet.links import Links
from brisk_bench.fleet.namespaces import rack
from brisk_bench.fleet.transfers import Swarm, Transfer, TransferSide, Unicast, optimum_s
from brisk_bench.harness.command_line import (
    UnusableArgumentError,
    benchmark_parser,
    listed,
    run_command,
)
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Report, check_limit, save_figure, subplots
from brisk_bench.harness.sampling import in_rounds

RECEIVERS = (1, 2, 3, 4)
"""Numbers of receivers that are measured, interleaved."""

RATE_MBIT_S = 500.0
MEGABYTES = 100

MOST_OVER = 1.10
"""The most that the chain may take, with TLS and digests, over the least time possible."""

LEAST_UNICAST = 3.5
"""The least time of unicast over the chain's, with MOST_RECEIVERS."""

MOST_RECEIVERS = RECEIVERS[-1]
MOST_KILLED_S, MOST_CUT_S = 0.3, 1.0

NOTES = (
    "seconds: from the common start to the last receiver's last byte; over: that over the least "
    "that the links allow; cpu: processor time of the side's processes, but for the web server's. "
    "Medians over rounds",
    "all hosts share this machine's processors; no latency of a network, no loss",
)


def run(
    quick: bool = False,
    receivers: Sequence[str] = (),
    faults: bool = False,
    megabytes: int = MEGABYTES,
    rate: float = RATE_MBIT_S,
    rounds: int = 0,
    libtorrent: Path | None = None,
) -> Report:
    """Measure the transfer to each number of receivers by each side.

    ``receivers``: numbers out of RECEIVERS; empty: all of them, or only the last if ``quick``.
    ``rate``: of each link, Mbit/s.
    ``libtorrent``: a Python that has libtorrent.

    Raises UnusableArgumentError for other numbers of receivers, NoNamespacesError if hosts cannot
    be made, UnfitLinksError if links do not carry what they should, NoLibtorrentError.
    """
    counts = chosen_counts(receivers, quick)
    report = new_report("chain", ("aiohttp", "cryptography"), NOTES, threads="all")
    names = ["source", *(f"r{number}" for number in range(1, max(counts) + 1))]
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
        runs = [(count, side) for count in counts for side in sides]
        if faults and MOST_RECEIVERS in counts:
            runs += [(MOST_RECEIVERS, Chain(links, Path(name), each)) for each in (KILLED, CUT)]
        sides_of = {(count, side.name): side for count, side in runs}

        def transfer(run: tuple[int, str]) -> Transfer:
            return sides_of[run].run(machines.hosts[: run[0] + 1], file)

        took, _ = in_rounds(sides_of, rounds or (2 if quick else 5), transfer)
        for (count, side_name), transfers in took.items():
            seconds = [each.seconds for each in transfers]
            report.rows.append(
                {
                    "receivers": count,
                    "side": side_name,
                    "seconds": statistics.median(seconds),
                    "spread_s": max(seconds) - min(seconds),
                    "least_s": least_s,
                    "over": statistics.median(seconds) / least_s,
                    "cpu_s": statistics.median(each.processor_s for each in transfers),
                }
            )
    add_checks(report)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("chain", __doc__, f"two rounds, {MOST_RECEIVERS} receivers")
    parser.add_argument(
        "--receivers", type=listed, default=(), help=f"of {','.join(map(str, RECEIVERS))}"
    )
    parser.add_argument("--faults", action="store_true", help="kill a host, cut a link")
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    parser.add_argument("--rate", type=float, default=RATE_MBIT_S, help="of each link, Mbit/s")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--libtorrent", type=Path, metavar="PYTHON", help="that has libtorrent")
    return run_command(parser, arguments, run, plot_receivers)


def chosen_counts(receivers: Sequence[str], quick: bool) -> list[int]:
    """Return the numbers of receivers, sorted. Raises UnusableArgumentError for unknown ones."""
    choices = {str(count): count for count in RECEIVERS}
    if unknown := [each for each in receivers if each not in choices]:
        raise UnusableArgumentError(f"'{unknown[0]}' receivers; expected {', '.join(choices)}")
    if receivers:
        return sorted({choices[each] for each in receivers})
    return [MOST_RECEIVERS] if quick else [*RECEIVERS]


def add_checks(report: Report) -> None:
    """Add every check that the rows allow."""
    for row in report.rows:
        if row["side"] == "chain":
            count = row["receivers"]
            text = f"chain to {count} host{'s'[: count > 1]} over the least, with TLS and digests"
            report.checks.append(check_limit(text, row["over"], "<=", MOST_OVER, digits=3))
    most = {row["side"]: row for row in report.rows if row["receivers"] == MOST_RECEIVERS}
    if not most:
        return
    chain_s = most["chain"]["seconds"]
    for name, least in (("unicast", LEAST_UNICAST), ("libtorrent", 1.0)):
        if name in most:
            ratio = most[name]["seconds"] / chain_s
            report.checks.append(check_limit(f"{name} over chain", ratio, ">=", least, digits=2))
    for fault, most_s in ((KILLED, MOST_KILLED_S), (CUT, MOST_CUT_S)):
        side = f"chain, one {fault}"
        if side in most:
            more_s = most[side]["seconds"] - chain_s
            text = f"the others, one host {fault} half-way: seconds more"
            report.checks.append(check_limit(text, more_s, "<=", most_s, digits=2))


def plot_receivers(report: Report, folder: Path) -> Path:
    """Plot each side's seconds by the number of receivers, and the least."""
    figure, axes = subplots(figsize=(6, 4))
    for side in dict.fromkeys(row["side"] for row in report.rows):
        rows = [row for row in report.rows if row["side"] == side]
        counts, seconds = ([row[key] for row in rows] for key in ("receivers", "seconds"))
        spreads = [row["spread_s"] / 2 for row in rows]
        axes.errorbar(counts, seconds, yerr=spreads, marker="o", capsize=3, label=side)
    axes.axhline(report.rows[0]["least_s"], linestyle=":", color="black", label="least")
    axes.set(xlabel="receivers", ylabel="seconds", xticks=RECEIVERS, ylim=(0, None))
    axes.legend()
    return save_figure(figure, folder / f"{report.name}.png")
