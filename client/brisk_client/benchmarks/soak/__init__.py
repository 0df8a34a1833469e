"""`brisk bench soak`: ten minutes of everything that goes wrong in a real deployment.

Clients ask the sample models over HTTP and gRPC without pause, in all classes, while models are
loaded and unloaded, workers killed, artefacts damaged, and the cache directory's disk, a small
one, is filled. No answer may be wrong, no request lost, nothing may leak.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from brisk_client.benchmarks.harness.command_line import benchmark_parser, deliver
from brisk_client.benchmarks.harness.machine import describe_machine, installed_versions
from brisk_client.benchmarks.harness.served_server import benchmark_server
from brisk_client.benchmarks.pressure.clients import PressureClients
from brisk_client.benchmarks.pressure.sampling import MemorySampler, report_memory, since
from brisk_client.benchmarks.soak.troubles import CHURNED, Troubles, small_disk
from brisk_client.report import Check, Report, plot_bars
from brisk_client.samples.expectations import EXPECTED

REPOSITORY = Path(__file__).resolve().parents[4] / "model_repository"

CLIENTS = 8
WARM_UP_S = 30.0
GROWTH_LIMIT = 0.05
"""Of the last quarter's mean over the first quarter's: workers that replaced others have heaps
of their own age, so it is coarser than in `brisk bench pressure`."""

ANY_CLASS = '\nparameters { key: "brisk_max_class" value { string_value: "realtime" } }\n'
"""Of each entry's configuration: its requests are of all classes."""

FILES_LIMIT = 20
"""How many more files all processes together may have open in the end than in the beginning."""


def run(quick: bool = False, seconds: float = 600.0) -> Report:
    """For ``seconds`` (60 where ``quick``) after the warm-up."""
    seconds = 60.0 if quick else seconds
    report = Report(
        name="soak",
        machine={**describe_machine(), "clients": CLIENTS, "seconds": seconds},
        versions=installed_versions("torch", "tritonclient", "numpy"),
        rows=[],
        checks=[],
    )
    present = {path.name for path in Path("/dev/shm").iterdir()}
    with tempfile.TemporaryDirectory(prefix="brisk-soak-") as folder:
        repository = _repository(Path(folder) / "models")
        with small_disk(Path(folder) / "cache") as cache:
            _soak(report, repository, cache, seconds)
    left = {path.name for path in Path("/dev/shm").iterdir()} - present
    left = {name for name in left if "brisk" in name}
    report.checks.append(Check("files left in /dev/shm", len(left), "0", not left))
    return report


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    parser = benchmark_parser("soak", __doc__, "one minute")
    parser.add_argument("--seconds", type=float, default=600.0)
    chosen = parser.parse_args(arguments)
    report = run(chosen.quick, chosen.seconds)
    return deliver(
        report, chosen, lambda folder: plot_bars(report, folder, "last_mib", "kind", "what")
    )


def _soak(report: Report, repository: Path, cache: Path, seconds: float) -> None:
    environment = {"BRISK_CACHE_DIR": str(cache)}
    names = [entry.name for entry in repository.iterdir() if entry.name != CHURNED]
    options = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in names)]
    with (
        benchmark_server(repository, environment, options) as server,
        PressureClients(
            repository,
            server.http,
            server.grpc,
            count=CLIENTS,
            warm_up_s=WARM_UP_S,
            duration_s=seconds,
        ) as asking,
        MemorySampler(server) as sampler,
        Troubles(server, cache, WARM_UP_S, seconds) as troubles,
    ):
        outcome = asking.wait()
        troubles.wait()
    answers = sum(map(len, outcome.latency_s.values()))
    errors = outcome.errors.pop("in all", 0) - outcome.wrong
    report.rows.append({"kind": "answers", "what": "sample models", "count": answers})
    report.rows += [
        {"kind": "trouble", "what": what, "count": count}
        for what, count in troubles.counts.items()
    ]
    report.checks += [
        Check("errors, lost requests among them", errors, "0", errors == 0 and answers > 0),
        Check("wrong answers", outcome.wrong, "0", outcome.wrong == 0),
        Check(
            "wrong answers and errors around troubles",
            len(troubles.faults),
            "0",
            not troubles.faults,
        ),
    ]
    report.notes += [f"{count} × {text:.300}" for text, count in outcome.errors.items()]
    report.notes += troubles.faults[:10] + troubles.notes
    samples = since(sampler.samples, WARM_UP_S, seconds)
    report_memory(report, samples, seconds / 4, GROWTH_LIMIT)
    opened = troubles.files_after - troubles.files_before
    text = "more open files in the end"
    report.checks.append(Check(text, opened, f"<= {FILES_LIMIT}", opened <= FILES_LIMIT))


def _repository(directory: Path) -> Path:
    """The sample entries, and a copy of one that comes and goes; all for requests of any class."""
    directory.mkdir(parents=True)
    for entry in sorted(file.parent for file in REPOSITORY.glob(f"*/{EXPECTED}")):
        shutil.copytree(entry, directory / entry.name)
    shutil.copytree(REPOSITORY / "mlp", directory / CHURNED)
    (directory / CHURNED / EXPECTED).unlink()
    for config in directory.glob("*/config.pbtxt"):
        config.write_text(config.read_text() + ANY_CLASS)
    return directory
