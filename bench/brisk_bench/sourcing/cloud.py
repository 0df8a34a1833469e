"""Triton's own access to models that lie elsewhere: a repository in a bucket."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brisk.errors import UnavailableError
from brisk_bench.engines.case import Case
from brisk_bench.fleet.programs import web_server
from brisk_bench.fleet.remote_entries import ENTRY
from brisk_bench.harness.report import REASON, Report, check_limit
from brisk_bench.harness.sampling import in_rounds, one_line
from brisk_bench.harness.served_entries import write_brisk_entry
from brisk_bench.sourcing.scene import EQUAL_MBIT_S, PATIENCE_S, Scene, told

PART = "cloud"

BUCKET, REMOTE = "triton's bucket", "model.remote"
SIDES = (BUCKET, REMOTE)

LEAST_GAIN = 2.0
"""The least of the bucket's time over that of an entry with `model.remote`."""

_FOLDER, _REPOSITORY = "bucket", "models"

NOTES = (
    "cloud: triton's bucket: the server's repository is s3://…, in which the entry's model lies; "
    "Triton downloads it, Brisk starts it. model.remote: the entry is here, its model on the web "
    "server of the same host, with a form",
)


def measure(report: Report, scene: Scene, case: Case, rounds: int) -> None:
    """Add rows and a check; for a server without such repositories a row with its error."""
    report.notes.extend(f"links: {line}" for line in scene.shape(EQUAL_MBIT_S))
    remote = scene.publish(case.file, PART, with_form=True)
    buckets = scene.scratch / "buckets"
    write_brisk_entry(buckets / _FOLDER / _REPOSITORY, case.file, ENTRY, {})
    serving = web_server(scene.registry, "buckets", buckets)
    with serving as server, scene.starting(case) as starting:
        port = server.hear(PATIENCE_S)["port"]
        url = f"s3://http://{scene.registry.address}:{port}/{_FOLDER}/{_REPOSITORY}"

        def start(side: str) -> Mapping[str, Any]:
            if side == BUCKET:
                return told(starting, "bucket", repository=url)
            return told(starting, "away", remote=remote)

        try:
            starts, _ = in_rounds(SIDES, rounds, start)
        except UnavailableError as error:
            row = {"part": PART, "model": f"{case.name} from {BUCKET}"}
            report.rows.append({**row, REASON: one_line(str(error))})
            return
    report.rows.extend(rows(case.name, starts))
    add_checks(report)


def rows(model: str, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    for side, starts in found.items():
        firsts = [start["first_s"] for start in starts]
        yield {
            "part": PART,
            "model": model,
            "side": side,
            "first_s": statistics.median(firsts),
            "spread_s": max(firsts) - min(firsts),
        }


def add_checks(report: Report) -> None:
    """Add every check that the rows allow."""
    by_side = {row["side"]: row for row in report.rows if row.get("part") == PART}
    text = f"{by_side[BUCKET]['model']}: Triton's own repository in a bucket over this"
    gain = by_side[BUCKET]["first_s"] / by_side[REMOTE]["first_s"]
    report.checks.append(check_limit(text, gain, ">=", LEAST_GAIN, digits=3))
