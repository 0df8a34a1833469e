"""`brisk bench start`: its sides and checks, and real servers with a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from brisk_bench import start
from brisk_bench.engines.case import Case, case_of
from brisk_bench.harness.command_line import UnusableArgumentError
from brisk_bench.harness.sampling import in_rounds
from brisk_bench.harness.served_server import reason_in
from brisk_bench.start import all_checks
from brisk_bench.start.sides import (
    FIRST,
    PREPARED,
    PYTHON,
    PYTHON_PREPARED,
    Configuration,
    StartBench,
    StartSide,
)
from support.models.graph_models import model
from support.published_runs import readme_shows

pytestmark = [pytest.mark.timing, pytest.mark.beside]


def write(file: Path, kind: str = "float") -> Path:
    onnx.save(model(f"g ({kind}[batch,3] x) => ({kind}[batch,3] y) {{y = Neg(x)}}"), file)
    return file


@pytest.fixture
def case(tmp_path: Path) -> Case:
    pytest.importorskip("onnxruntime")
    return case_of(str(write(tmp_path / "tiny.onnx")))


def _bench(case: Case, folder: Path) -> StartBench:
    return StartBench(case, 1, folder)


def _row(engine: str, first_ms: float, **more: Any) -> dict[str, Any]:
    entry = Configuration.COMPLETE.value
    row = {"model": "m", "engine": engine, "entry": entry, "first_ms": first_ms}
    return {**row, "samples": 3, "right": 3, **more}


@pytest.fixture
def _without_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure is judged. Servers that are started again are in ``test_density``."""

    def rounds_alone(*given: Any, uncounted: int, failures: Any) -> Any:
        return in_rounds(*given, failures=failures)

    monkeypatch.setattr(start, "in_rounds", rounds_alone)


@pytest.mark.server
@pytest.mark.usefixtures("_without_warm_up")
def test_real_servers_are_started_and_answer_rightly(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    report = start.run(
        model=[str(write(tmp_path / "tiny.onnx"))],
        threads=1,
        rounds=1,
        entries=["complete"],
        side=[FIRST, PYTHON_PREPARED[1]],
    )
    assert [row["engine"] for row in report.rows] == [FIRST, PYTHON_PREPARED[1]]
    for row in report.rows:
        assert (row["samples"], row["right"]) == (1, 1), row
        assert 0 < row["ready_ms"] <= row["first_ms"]
    assert all(check.ok for check in report.checks if "right answers" in check.name)


@pytest.mark.server
@pytest.mark.usefixtures("_without_warm_up")
def test_a_backend_that_cannot_be_loaded_is_told_of_and_the_others_are_measured(
    tmp_path: Path,
) -> None:
    pytest.importorskip("onnxruntime")
    peer = tmp_path / "peers" / "onnxruntime"
    peer.mkdir(parents=True)
    (peer / "libtriton_onnxruntime.so").write_bytes(b"\x7fELF no more of it")
    report = start.run(
        model=[str(write(tmp_path / "tiny.onnx"))],
        threads=1,
        rounds=1,
        peers=tmp_path / "peers",
        entries=["complete"],
        side=["onnxruntime backend", PYTHON],
    )
    rows = {row["engine"]: row for row in report.rows}
    assert "tritonserver ended with status 1" in rows["onnxruntime backend"]["reason"]
    assert rows[PYTHON]["right"] == 1


def test_the_right_answer_of_a_file_is_computed_apart(case: Case) -> None:
    assert np.array_equal(case.expected["y"], -case.inputs["x"])
    assert [tensor.dims for side in case.signature for tensor in side] == [[-1, 3], [-1, 3]]


def test_models_that_cannot_be_served_are_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(UnusableArgumentError, match="'nothing' is no ONNX file"):
        case_of("nothing")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(UnusableArgumentError, match="not a complete ONNX model"):
        case_of(str(tmp_path / "broken.onnx"))
    with pytest.raises(UnusableArgumentError, match="onnxruntime cannot run it"):
        case_of(str(write(tmp_path / "texts.onnx", "string")))


def test_a_first_start_finds_nothing_that_an_earlier_one_left(case: Case, tmp_path: Path) -> None:
    side = StartSide(_bench(case, tmp_path), FIRST)
    repository = side.write(Configuration.COMPLETE)
    (repository / "model" / "1" / ".brisk").mkdir()
    cache = Path(side.environment(Configuration.COMPLETE)["BRISK_CACHE_DIR"])
    cache.mkdir(parents=True)
    side.write(Configuration.COMPLETE)
    assert not cache.exists()
    assert [file.name for file in (repository / "model" / "1").iterdir()] == ["model.onnx"]


def test_entries_say_all_or_only_the_platform(case: Case, tmp_path: Path) -> None:
    brisk, python = (
        StartSide(_bench(case, tmp_path), FIRST),
        StartSide(_bench(case, tmp_path), PYTHON, "python"),
    )
    alone = brisk.write(Configuration.PLATFORM) / "model" / "config.pbtxt"
    assert alone.read_text() == 'platform: "onnxruntime_onnx"\n'
    texts = [
        (side.write(Configuration.COMPLETE) / "model" / "config.pbtxt").read_text()
        for side in (brisk, python)
    ]
    assert texts[0].replace('"brisk"', '"python"') == texts[1]
    code = python.write(Configuration.COMPLETED) / "model" / "1" / "model.py"
    assert "auto_complete_config" in code.read_text()
    compile(code.read_text(), "model.py", "exec")


def test_the_peers_own_backend_gets_the_optimised_model_with_its_weights(
    case: Case, tmp_path: Path
) -> None:
    source = tmp_path / "onnxruntime"
    source.mkdir()
    bench = _bench(case, tmp_path)
    side = StartSide(bench, "prepared", "onnxruntime", is_prepared=True, peer=source)
    entry = side.write(Configuration.COMPLETE) / "model"
    assert "optimization { graph { level: 2 } }" in (entry / "config.pbtxt").read_text()
    assert (entry / "1" / "model.onnx").is_file()


def test_brisk_is_compared_with_triton_s_own_backend_and_with_prepared_peers() -> None:
    rows = [
        _row(FIRST, 30.0),
        _row(PREPARED, 10.0),
        _row(PYTHON, 40.0),
        _row("onnxruntime backend", 20.0),
        _row(PYTHON_PREPARED[0], 15.0),
        _row(PYTHON_PREPARED[1], 12.0),
        _row("onnxruntime backend", 1.0, entry=Configuration.PLATFORM.value),
    ]
    found = {check.name: (check.value, check.ok) for check in all_checks(rows)}
    text = "exec to first answer"
    assert found[f"m: {FIRST} over onnxruntime backend, {text}"] == (1.5, False)
    assert found[f"m: {PREPARED} over onnxruntime backend, {text}"] == (0.5, True)
    assert found[f"m: {PREPARED} over {PYTHON}, {text}"] == (0.25, True)
    assert found[f"m: {PREPARED} over {PYTHON_PREPARED[1]}, {text}"] == (0.833, True)


def test_the_python_backend_stands_in_for_triton_s_own() -> None:
    rows = [_row(FIRST, 130.0), _row(PREPARED, 80.0), _row(PYTHON, 100.0)]
    found = {check.name: (check.value, check.ok) for check in all_checks(rows)}
    text = "exec to first answer"
    assert found[f"m: {FIRST} over 0.9 x {PYTHON}, {text}"] == (1.444, False)
    assert found[f"m: {PREPARED} over 0.9 x {PYTHON}, {text}"] == (0.889, True)
    assert found[f"m: {PREPARED} over {PYTHON}, {text}"] == (0.8, False)


def test_the_readme_shows_prepared_beside_prepared() -> None:
    engines = {PREPARED: 12.0, PYTHON: 40.0, PYTHON_PREPARED[0]: 15.0, PYTHON_PREPARED[1]: 10.0}
    rows = [_row(engine, first_ms, model="resnet50") for engine, first_ms in engines.items()]
    (check,) = readme_shows("start", all_checks(rows))
    assert (check.value, check.expected, check.ok) == (1.2, "<= 1", False)


def test_wrong_answers_and_a_brisk_that_does_not_start_fail() -> None:
    rows = [_row(PYTHON, 1.0, right=2), {**_row(FIRST, 1.0), "reason": "it ended"}]
    del rows[1]["first_ms"]
    assert [check.ok for check in all_checks(rows)] == [False, False]


def test_the_reason_is_what_the_server_says_of_its_model() -> None:
    log = 'I1 a.cc:1] "up"\nE1 b.cc:2] "failed to load \'model\': no"\nE1 c.cc:3] "later"\n| t |\n'
    assert reason_in(log) == "\"failed to load 'model': no\""
    assert reason_in("last words\n") == "last words"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--peer-backends", "nowhere"], "nowhere' is no folder"),
        (["--model", "nothing"], "'nothing' is no ONNX file"),
        (["--entries", "half"], "there are: complete, completed, platform"),
        (["--input", "x"], "--input x: expected"),
    ],
)
def test_a_command_line_of_unknown_names_is_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        start.main(arguments)
    assert text in capsys.readouterr().err
