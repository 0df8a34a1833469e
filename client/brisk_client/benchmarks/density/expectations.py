"""What is expected of many small models on one server, as checks on a report's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brisk_client.benchmarks.density.servers import BRISK
from brisk_client.benchmarks.harness.peer_backends import ONNXRUNTIME
from brisk_client.report import REASON, Check

Rows = Sequence[Mapping[str, Any]]

ENTRIES, IDLE, MODEL = "entries", "idle runtime", "one model"
"""Parts of the report."""

PEER = f"{ONNXRUNTIME} backend"
STAND_IN_ENTRIES, STAND_IN_MB, STAND_IN_READY_S = 40, 1050.0, 2.5
"""Of Triton's C++ backend with so many `mlp`, for a machine without it."""

MEMORY_SHARE, STUB_MB, IDLE_MB, MODEL_SHARE = 0.6, 8.0, 90.0, 0.2


def all_checks(rows: Rows) -> list[Check]:
    """Every expectation that the rows suffice for."""
    return [*_answers(rows), *_against_peer(rows), *_stub(rows), *_runtime(rows)]


def _answers(rows: Rows) -> list[Check]:
    checks = []
    for row in rows:
        if row["part"] == IDLE:
            continue
        name = f"{row['part']}: {row['engine']}, right answers"
        if REASON in row:
            if row["engine"] == BRISK:
                checks.append(Check(name, row[REASON], "all", False))
        elif "asked" in row:
            found = f"{row['right']} of {row['asked']}"
            checks.append(Check(name, found, "all", row["right"] == row["asked"]))
    return checks


def _find(rows: Rows, part: str, engine: str) -> Mapping[str, Any] | None:
    chosen = (row for row in rows if (row["part"], row["engine"]) == (part, engine))
    return next((row for row in chosen if REASON not in row), None)


def _against_peer(rows: Rows) -> list[Check]:
    ours, peer = _find(rows, ENTRIES, BRISK), _find(rows, ENTRIES, PEER)
    if ours is None:
        return []
    of = PEER
    if peer is None:
        if ours["model"] != "mlp" or ours["entries"] != STAND_IN_ENTRIES:
            return []  # the figures that stand in are of these
        of = f"{PEER}, as reported"
        peer = {"memory_mb": STAND_IN_MB, "ready_s": STAND_IN_READY_S}
    share = round(ours["memory_mb"] / peer["memory_mb"], 3)
    sooner = round(ours["ready_s"] / peer["ready_s"], 3)
    what = f"{ours['entries']} {ours['model']}"
    return [
        Check(f"{what}: memory over {of}", share, f"<= {MEMORY_SHARE}", share <= MEMORY_SHARE),
        Check(f"{what}: exec to ready over {of}", sooner, "<= 1.0", sooner <= 1.0),
    ]


def _stub(rows: Rows) -> list[Check]:
    ours = _find(rows, ENTRIES, BRISK)
    if ours is None:
        return []
    found = round(ours["stub_mb"], 2)
    name = "private memory of a stub, median, MB"
    return [Check(name, found, f"<= {STUB_MB:g}", found <= STUB_MB)]


def _runtime(rows: Rows) -> list[Check]:
    checks = []
    idle = _find(rows, IDLE, BRISK)
    if idle is not None:
        found = round(idle["pss_mb"], 1)
        name = "a runtime without a model, all its processes, MB"
        checks.append(Check(name, found, f"<= {IDLE_MB:g}", found <= IDLE_MB))
    ours, theirs = _find(rows, MODEL, BRISK), _find(rows, MODEL, ONNXRUNTIME)
    if ours is not None and theirs is not None:
        share = round(ours["own_mb"] / theirs["own_mb"], 3)
        name = f"{ours['model']}: private memory over ONNX Runtime's default in process"
        checks.append(Check(name, share, f"<= {MODEL_SHARE}", share <= MODEL_SHARE))
    return checks
