"""`brisk bench soak`: everything that goes wrong in a real deployment, beside innocent clients.

Clients ask the sample models over HTTP and gRPC without pause. First nothing else happens; then
blows fall, one after the other: models are loaded and unloaded, workers killed and stopped,
artefacts damaged, the cache directory's disk, a small one, is filled, model files are replaced,
other clients send runs and load models that never end, or more requests to ten models than there
are places. No answer of the innocent may be wrong, late or lost, nothing may grow once each blow
has fallen twice, and each is told in the log. Before that: what an endless run costs a real-time
client, and 64 clients of a model the one client of another.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from brisk_bench.harness.command_line import (
    UnusableArgumentError,
    bars,
    benchmark_parser,
    run_command,
)
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Check, Report, check_limit
from brisk_bench.harness.served_server import benchmark_server
from brisk_bench.harness.tails import tail_or_shortage, tail_ratio
from brisk_bench.pressure.clients import ClientOutcome, pressure_clients
from brisk_bench.pressure.sampling import report_memory, sampled_memory
from brisk_bench.soak.blows import Blows
from brisk_bench.soak.entries import UNLOADED, small_disk, write_repository
from brisk_bench.soak.fairness import report_fairness

CLIENTS = 8
WARM_UP_S = 30.0
CALM_S = 180.0
"""The time without blows, whose answers those between blows are compared with."""

GROWTH_LIMIT = 0.05
"""The most growth of the last quarter's mean over the first quarter's. Coarser than in
`brisk bench pressure`: workers that replaced others have heaps of their own age."""

LEAST_S = 30.0
"""The shortest time of blows: the first one falls after seconds, and the last one ends before."""

LEAST_SAMPLES = 60
"""The fewest samples, one a second, after the blows have settled; with fewer, growth is judged
from the first blow on."""

FILES_LIMIT = 20
"""The most files that all processes together may have open in the end beyond those in the
beginning. Medians are compared: how many stubs have sessions just then changes by some ten files
a round."""

LONGEST_ANSWER_S = 2.0
TAIL_LIMIT = 2.0
"""The most of an innocent model's p99 between blows over that without any."""


ASKED = 1100
"""Requests of each row that says what one client costs another."""


def run(quick: bool = False, seconds: float = 3600.0) -> Report:
    """Strike for ``seconds`` (150 if ``quick``) after the warm-up and a time without blows.

    Raises UnusableArgumentError for fewer seconds than LEAST_S.
    """
    calm_s = 20.0 if quick else CALM_S
    seconds = 150.0 if quick else seconds
    if seconds < LEAST_S:
        raise UnusableArgumentError(f"--seconds {seconds:g}: expected at least {LEAST_S:g}")
    requests = 100 if quick else ASKED
    packages = ("tritonclient", "numpy")
    report = new_report("soak", packages, clients=CLIENTS, calm_s=calm_s, seconds=seconds)
    present = {path.name for path in Path("/dev/shm").iterdir()}
    with TemporaryDirectory(prefix="brisk-soak-") as folder:
        repository = write_repository(Path(folder) / "models")
        with small_disk(Path(folder) / "cache") as cache:
            _soak(report, repository, cache, calm_s, seconds, requests)
    leftovers = {path.name for path in Path("/dev/shm").iterdir()} - present
    leftovers = {name for name in leftovers if "brisk" in name}
    report.checks.append(Check("files left in /dev/shm", len(leftovers), "0", not leftovers))
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("soak", __doc__, "some minutes")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of blows")
    return run_command(parser, arguments, run, bars("last_mib", "kind", "what"))


def _soak(
    report: Report,
    repository: Path,
    cache: Path,
    calm_s: float,
    seconds: float,
    asked: int,
) -> None:
    environment = {"BRISK_CACHE_DIR": str(cache)}
    names = sorted({entry.name for entry in repository.iterdir()} - UNLOADED)
    options = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in names)]
    with benchmark_server(repository, environment, options) as server:
        report_fairness(report, server, asked)
        with (
            pressure_clients(server, CLIENTS, WARM_UP_S, calm_s + seconds) as outcome_of,
            sampled_memory(server, WARM_UP_S + calm_s, seconds) as memory,
        ):
            blows = Blows(server, repository, cache)
            time.sleep(WARM_UP_S + calm_s)
            blows.make(seconds)
            outcome = outcome_of()
    _report_blows(report, blows)
    outcome.judge(report, "errors, lost requests among them")
    _report_latency(report, outcome, blows)
    settled = memory[round(blows.settled_s - blows.begun_s) :]
    if len(settled) < LEAST_SAMPLES:
        settled = memory
    report_memory(report, settled, len(settled) // 4, GROWTH_LIMIT)
    name = "more open files, medians of the last and the first quarter of blows"
    report.checks.append(check_limit(name, _more_files(blows.files), "<=", FILES_LIMIT))


def _more_files(opened: Sequence[int]) -> float | str:
    quarter = len(opened) // 4
    if not quarter:
        return f"too few blows ({len(opened)})"
    return median(opened[-quarter:]) - median(opened[:quarter])


def _report_blows(report: Report, blows: Blows) -> None:
    report.rows += [
        {"kind": "blow", "what": what, "count": count} for what, count in blows.counts.items()
    ]
    name = "wrong answers and errors around blows"
    report.checks.append(Check(name, len(blows.faults), "0", not blows.faults))
    name = "blows that the log does not tell of"
    report.checks.append(Check(name, len(blows.untold), "0", not blows.untold))
    counts = Counter(blows.faults + blows.untold)
    report.notes += [f"{count} times: {what}" for what, count in counts.most_common(20)]
    report.notes += blows.notes


def _report_latency(report: Report, outcome: ClientOutcome, blows: Blows) -> None:
    """Add rows of each innocent model: without blows, between them, and the longest of all."""
    longest_s = 0.0
    ratios: list[float | str] = []
    for model, answers in sorted(outcome.answered.items()):
        calm = [each.seconds for each in answers if each.end_s < blows.begun_s]
        between = [each.seconds for each in answers if blows.is_outside(each.begin_s, each.end_s)]
        latest = max(answers, key=lambda each: each.seconds)
        during = blows.during(latest.begin_s, latest.end_s)
        ratios.append(tail_ratio(between, calm, 0.99))
        row = {
            "kind": "latency",
            "what": model,
            "count": len(answers),
            "calm_p99_ms": tail_or_shortage(calm, 0.99, 1e3),
            "between_p99_ms": tail_or_shortage(between, 0.99, 1e3),
            "ratio": ratios[-1],
            "longest_ms": latest.seconds * 1e3,
            "longest_beside": during,
        }
        report.rows.append(row)
        longest_s = max(longest_s, latest.seconds)
    lacking = [each for each in ratios if isinstance(each, str)]
    worst = lacking[0] if lacking else max(ratios, default="no answers")
    name = "longest answer of an innocent model, s"
    report.checks.append(check_limit(name, longest_s, "<=", LONGEST_ANSWER_S, 2))
    name = "p99 of an innocent model between blows over that without any, at most"
    report.checks.append(check_limit(name, worst, "<=", TAIL_LIMIT, 2))
