"""`brisk bench throughput`: how many requests a second a server answers, and what each costs it.

Each model is served by Brisk, by Triton's Python backend with ONNX Runtime in `model.py`, which
computes the requests of one `execute` one by one or joins them, and by Triton's own ONNX Runtime
backend where `--peer-backends` names a folder with it; each peer with the better of its settings
of threads and spinning. Clients are processes with one request in flight each. Sides are asked in
turns, in rounds; each has a server of its own, which rests meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from brisk_bench.engines.case import Case, case_of
from brisk_bench.harness.command_line import (
    UnusableArgumentError,
    bars,
    benchmark_parser,
    check_known,
    listed,
    run_command,
)
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.peer_backends import add_peers_option, onnxruntime_backend
from brisk_bench.harness.report import Report
from brisk_bench.harness.served_entries import sample_file
from brisk_bench.throughput.checks import add_checks
from brisk_bench.throughput.load import GRPC, HTTP, clients
from brisk_bench.throughput.measure import Effort, EntriesBench
from brisk_bench.throughput.sides import takes_rows

LABELS = ("mlp/1", "digits_cnn/1", "digits_cnn/2", "resnet50/1", "encoder/1")
MIXED = ("mlp/1", "digits_cnn/1", "digits_cnn/2")
MIX = "mix"
ENTRIES, EXPONENT = 40, 1.1
"""Entries of the mix, and the exponent by which requests fall with an entry's place (Zipf)."""

COUNTS = (1, 4, 16, 64)
BEFORE_S, MIXED_BEFORE_S = 5.0, 30.0
"""How long each side is asked before its rounds. The mix takes longer: its last entries are asked
five times a second."""

NOTES = (
    "per_s: answers to requests that began within a run's seconds; latency: closed loop, from "
    "sending, open loop, from when the request was due; medians over rounds, of p99 all rounds "
    "together",
    "us: processor time a request of all processes of the server's side, and of each kind; "
    "memory: proportional set size of all of them, after the rounds",
    "peers: of threads and spinning the setting that answered most in a trial of 4 clients; "
    "Brisk is as it is installed",
)


def run(
    models: Sequence[str] = (),
    folder: Path | None = None,
    transports: Sequence[str] = (),
    counts: Sequence[int] = (),
    batching: str = "both",
    open_loop: bool = True,
    rounds: int = 3,
    seconds: float = 5.0,
    quick: bool = False,
    peers: Path | None = None,
) -> Report:
    """Measure ``models``: sample labels, files, MIX; none: all, and those of ``folder``.

    Raises UnusableArgumentError for what does not exist.
    """
    peer = onnxruntime_backend(peers) if peers is not None else None
    named = list(models) or [*LABELS, MIX]
    if folder is not None:
        named += [str(file) for file in sorted(folder.glob("*.onnx"))]
    effort = Effort(
        transports=tuple(transports) or (GRPC, HTTP),
        counts=tuple(counts) or COUNTS,
        rounds=1 if quick else rounds,
        seconds=min(seconds, 1.0) if quick else seconds,
        before_s=BEFORE_S,
        open_loop=open_loop,
    )
    check_known("transport", effort.transports, (GRPC, HTTP))
    packages = ("onnxruntime", "tritonclient", "grpcio", "numpy")
    report = new_report("throughput", packages, NOTES, seconds=effort.seconds)
    modes = {"both": (True, False), "on": (True,), "off": (False,)}[batching]
    served = {name: _cases(name) for name in named}  # all are known before any is measured
    with clients(max(effort.counts)) as crowd:
        for name, (cases, weights) in served.items():
            for is_batching in modes:
                if is_batching and not all(map(takes_rows, cases)):
                    continue
                own = replace(effort, before_s=MIXED_BEFORE_S) if name == MIX else effort
                EntriesBench(report, name, cases, weights, own, crowd, peer, is_batching).measure()
    add_checks(report)
    return report


def _cases(name: str) -> tuple[list[Case], list[float]]:
    """Return the models served under a name, and how often each is asked."""
    if name != MIX:
        return [_case(name)], [1.0]
    samples = [_case(each) for each in MIXED]
    weights = [(place + 1) ** -EXPONENT for place in range(ENTRIES)]
    return [samples[place % len(samples)] for place in range(ENTRIES)], weights


def _case(name: str) -> Case:
    """Return the case of a file, or of a sample NAME/VERSION. Raises UnusableArgumentError."""
    if Path(name).is_file():
        return case_of(name)
    try:
        return case_of(str(sample_file(name)))
    except FileNotFoundError as error:
        text = f"--model {name}: neither a file nor a sample, NAME/VERSION as {LABELS[0]}: {error}"
        raise UnusableArgumentError(text) from None


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("throughput", __doc__, "one short round")
    parser.add_argument(
        "--model", dest="models", action="append", default=[], metavar="LABEL|FILE",
        help=f"only this; any number; '{MIX}': {ENTRIES} entries of small samples",
    )  # fmt: skip
    parser.add_argument(
        "--models", dest="folder", type=Path, metavar="DIR", help="every *.onnx file of it, too"
    )
    parser.add_argument("--transports", type=listed, default=[], help="gRPC,HTTP")
    parser.add_argument(
        "--clients", dest="counts", type=lambda text: [int(each) for each in listed(text)],
        default=[], help="numbers of clients (default: 1,4,16,64)",
    )  # fmt: skip
    parser.add_argument("--batching", choices=("both", "on", "off"), default="both")
    parser.add_argument(
        "--no-open-loop", dest="open_loop", action="store_false", help="closed loops only"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    add_peers_option(parser)
    return run_command(parser, arguments, run, bars("per_s", "what", "side"))
