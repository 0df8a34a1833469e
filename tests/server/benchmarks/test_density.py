"""`brisk bench density`: memory as the kernel tells it, its checks, and a real server."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import onnx
import pytest

from brisk_bench import density
from brisk_bench.density import BRISK, COPIES, DIFFERENT, IDLE, MODEL, all_checks
from brisk_bench.density.memory import ProcessMemory, read_rollup, read_shared, shared_once
from brisk_bench.density.networks import write_networks
from brisk_bench.harness.peer_backends import CPP
from brisk_bench.harness.processes import kind_of
from brisk_bench.harness.sampling import in_rounds
from brisk_bench.start.sides import PYTHON
from support.models.graph_models import model
from support.published_runs import readme_shows

pytestmark = [pytest.mark.timing, pytest.mark.beside]

SMAPS = """7f00-7f10 rw-s 00000000 00:01 77                  /memfd:brisk (deleted)
Size:                 64 kB
Rss:                  20 kB
Shared_Clean:          4 kB
Shared_Dirty:          8 kB
Private_Clean:         0 kB
Private_Dirty:         8 kB
7f10-7f20 r-xp 00000000 08:01 12                  /usr/lib/libc.so.6
Shared_Clean:       1000 kB
7f20-7f30 rw-s 00000000 00:1b 9                   /dev/shm/region
Shared_Dirty:         16 kB
7f30-7f40 rw-p 00000000 00:00 0
Shared_Dirty:         40 kB
"""


def row(engine: str, memory_mb: float, ready_s: float, **more: Any) -> dict[str, Any]:
    found = {"part": COPIES, "model": "mlp", "engine": engine, "entries": 40, "stub_mb": 7.0}
    found |= {"memory_mb": memory_mb, "ready_s": ready_s, "second_round_ms": 2.0}
    return {**found, "right": 2, "asked": 2, **more}


def judged(rows: list[dict[str, Any]]) -> dict[str, tuple[Any, bool]]:
    return {check.name: (check.value, check.ok) for check in all_checks(rows)}


def test_private_memory_is_clean_and_dirty_together() -> None:
    text = "55-7f ---p 0 00:00 0 [rollup]\nRss: 9 kB\nPss: 4 kB\nPrivate_Clean: 1 kB\n"
    assert read_rollup(text + "Private_Dirty:    2 kB\n") == (3 * 1024, 2 * 1024, 4 * 1024)
    with pytest.raises(ValueError, match="without 'Private_Dirty'"):
        read_rollup(text)


def test_of_shared_memory_only_what_is_shared_and_has_no_file_is_counted() -> None:
    assert read_shared(SMAPS) == {("00:01", 77): 12 * 1024, ("00:1b", 9): 16 * 1024}


def test_memory_that_two_processes_share_is_counted_once() -> None:
    one = ProcessMemory(1, "stub", 0, 0, 0, {("a", 1): 10, ("a", 2): 5})
    other = ProcessMemory(2, "runtime", 0, 0, 0, {("a", 1): 30})
    assert shared_once([one, other]) == 35


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (b"/b/python/triton_python_backend_stub\0m.py", "stub"),
        (b"brisk: waits for stub 12 thon_backend_stub", "launcher"),
        (b"brisk: forks stubs\0 ", "fork server"),
        (b"python\0-m\0brisk.runtime\0--device\0cpu", "runtime"),
        (b"/opt/tritonserver/bin/tritonserver", "tritonserver"),
    ],
)
def test_processes_are_told_by_their_command_lines(command: bytes, kind: str) -> None:
    assert kind_of(command) == kind


def test_brisk_is_held_against_what_was_measured_beside_it() -> None:
    found = judged([row(BRISK, 500.0, 3.0), row(PYTHON, 2000.0, 4.0), row(CPP, 800.0, 2.5)])
    assert found[f"40 copies of mlp: memory over {PYTHON}"] == (0.25, True)
    assert found[f"40 copies of mlp: memory over {CPP}"] == (0.625, False)
    assert found[f"40 copies of mlp: exec to ready over {CPP}"] == (1.2, False)
    alone = judged([row(BRISK, 500.0, 3.0)])
    assert not any(" over " in name for name in alone), "nobody else's figures stand in"


@pytest.mark.parametrize(("latency_ms", "is_met"), [(2.5, True), (2.6, False)])
def test_entries_that_are_asked_again_answer_about_as_fast_as_the_python_backend_s(
    latency_ms: float, is_met: bool
) -> None:
    ours = row(BRISK, 500.0, 3.0, part=DIFFERENT, model="", second_round_ms=latency_ms)
    found = judged([ours, row(PYTHON, 2000.0, 4.0, part=DIFFERENT, model="")])
    name = f"40 different networks: second round's latency over {PYTHON}"
    assert found[name] == (latency_ms / 2, is_met)


def test_the_readme_shows_memory_and_latency_of_different_networks() -> None:
    rows = [row(engine, 500.0, 3.0, part=DIFFERENT, model="") for engine in (BRISK, PYTHON)]
    memory, latency = readme_shows("density", all_checks(rows))
    assert (memory.expected, latency.expected) == ("<= 0.6", "<= 1.25")


def structure(file: Path) -> tuple[object, ...]:
    graph = onnx.load(file).graph
    shapes = tuple(tuple(each.dims) for each in graph.initializer)
    return tuple(node.op_type for node in graph.node), shapes


def test_different_networks_differ_in_structure_and_are_the_same_in_every_run(
    tmp_path: Path,
) -> None:
    files = write_networks(tmp_path / "once", 40)
    assert len({structure(file) for file in files}) == 40
    for number in (0, 1, 2):
        again = write_networks(tmp_path / "again", 3)[number]
        assert again.read_bytes() == files[number].read_bytes()


def test_stubs_an_idle_runtime_and_one_model_have_bounds() -> None:
    rows = [
        row(BRISK, 500.0, 2.0, stub_mb=8.5),
        {"part": IDLE, "model": "", "engine": BRISK, "pss_mb": 89.0},
        {"part": MODEL, "model": "r", "engine": BRISK, "own_mb": 30, "right": 3, "asked": 3},
        {"part": MODEL, "model": "r", "engine": "onnxruntime", "own_mb": 100.0},
    ]
    found = judged(rows)
    assert found["copies: private memory of a stub, median, MB"] == (8.5, False)
    assert found["a runtime without a model, all its processes, MB"] == (89.0, True)
    assert found["r: private memory over ONNX Runtime's default in process"] == (0.3, False)


def test_a_wrong_answer_and_a_brisk_that_cannot_be_measured_fail() -> None:
    rows = [row(PYTHON, 1.0, 1.0, right=1), {"part": COPIES, "engine": BRISK, "reason": "no"}]
    assert [check.ok for check in all_checks(rows)] == [False, False]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--peer-backends", "nowhere"], "nowhere' is no folder"),
        (["--model", "nothing"], "'nothing' is no ONNX file"),
        (["--entries", "-1"], "--entries -1: expected a number from 1"),
    ],
)
def test_a_command_line_that_cannot_be_followed_is_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        density.main(arguments)
    assert text in capsys.readouterr().err


@pytest.mark.server
def test_real_servers_are_started_answer_rightly_and_their_memory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    warm_ups = iter([1, 0])  # copies are started again, and different ones as copies are

    def one_less(*given: Any, uncounted: int, failures: Any) -> Any:
        return in_rounds(*given, uncounted=min(uncounted, next(warm_ups)), failures=failures)

    monkeypatch.setattr(density, "in_rounds", one_less)
    pause = "brisk_bench.density.memory._SETTLE_PAUSE_S"
    monkeypatch.setattr(pause, 0.2)  # no figure is judged
    file = tmp_path / "tiny.onnx"
    onnx.save(model("g (float[batch,3] x) => (float[batch,3] y) {y = Neg(x)}"), file)
    report = density.run(entries=2, rounds=1, threads=1, model=str(file), large=str(file))
    rows = {(row["part"], row["engine"]): row for row in report.rows}
    assert not [row for row in report.rows if "reason" in row]
    for part, engine in itertools.product((COPIES, DIFFERENT), (BRISK, PYTHON)):
        found = rows[part, engine]
        assert (found["right"], found["asked"]) == (4, 4)
        parts = ("tritonserver_mb", "stubs_mb", "fork_server_mb", "runtime_mb")
        assert sum(found[part] for part in parts) == pytest.approx(found["private_mb"])
        assert 0 < found["stub_mb"] <= found["largest_stub_mb"] < found["stubs_mb"]
    assert rows[COPIES, PYTHON]["runtime_mb"] == 0
    assert rows[COPIES, BRISK]["runtime_mb"] > 0
    assert rows[IDLE, BRISK]["processes"] >= 3
    assert rows[MODEL, BRISK]["right"] == 6
    assert all(check.ok for check in report.checks if "right answers" in check.name)
