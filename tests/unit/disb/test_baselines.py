"""Triton's own settings, which of them is the best, and a folder of its C++ backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brisk.errors import InvalidConfigurationError
from brisk_bench.disb.comparison.checks import best_row, best_trial
from brisk_bench.disb.comparison.rounds import taking_part
from brisk_bench.disb.networks import build_bert
from brisk_bench.disb.plan import SETTINGS, choose_settings
from brisk_bench.disb.sides import save_models, write_triton
from brisk_bench.harness.peer_backends import PEER_LIBRARY

CLASSES = ("realtime", "besteffort")


def _peers(folder: Path, content: bytes = b"\x7fELF and more") -> Path:
    library = folder / PEER_LIBRARY
    library.parent.mkdir(parents=True)
    library.write_bytes(content)
    return folder


def test_each_setting_is_written_as_triton_reads_it(tmp_path: Path) -> None:
    files = save_models(tmp_path / "models", {"bert": build_bert(32, 1, 8)})
    texts = {}
    for setting in choose_settings(None, _peers(tmp_path / "peers")):
        repository = tmp_path / setting.name
        write_triton(repository, files, [("bert", name) for name in CLASSES], setting, cores=2)
        for name in ("bert_rt", "bert_be"):
            texts[setting.name, name] = (repository / name / "config.pbtxt").read_text()
            model = repository / name / "1"
            is_peer = setting.backend == "onnxruntime"
            assert (model / ("model.onnx" if is_peer else "model.py")).exists()
            assert f'backend: "{setting.backend}"' in texts[setting.name, name]
    assert len(texts) == 20
    assert "resources" in texts["one run", "bert_rt"]
    assert "resources" not in texts["besteffort confined", "bert_rt"]
    assert "resources" in texts["besteffort confined", "bert_be"]
    assert "rate_limiter" not in texts["free", "bert_rt"]
    assert "count: 2 kind" in texts["two runs", "bert_be"]
    peer = texts["C++ besteffort confined", "bert_be"]
    assert 'key: "intra_op_thread_count" value: { string_value: "1" }' in peer
    source = (tmp_path / "thread a run" / "bert_rt" / "1" / "model.py").read_text()
    assert "intra_op_num_threads = 1\n" in source


def test_the_limiter_is_on_where_a_setting_has_turns() -> None:
    options = {setting.name: setting.options() for setting in SETTINGS}
    assert options["free"] == ["--rate-limit=off"]
    assert options["two runs"] == [
        "--rate-limit=execution_count",
        "--rate-limit-resource=turn:2",
    ]


def test_settings_are_chosen_by_name_and_a_wrong_name_is_told_those_there_are() -> None:
    assert [each.name for each in choose_settings(["free"], None)] == ["free"]
    assert choose_settings(None, None) == SETTINGS
    with pytest.raises(InvalidConfigurationError, match=r"no 'fast', only 'one run', .*peer"):
        choose_settings(["fast"], None)


def test_settings_of_the_other_backend_need_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"no '.*libtriton_onnxruntime\.so'; exp"):
        choose_settings(None, tmp_path)
    assert len(choose_settings(None, _peers(tmp_path / "right"))) > len(SETTINGS)


def _row(side: str, p90_ms: float, p99_ms: float | str) -> dict[str, Any]:
    return {"side": side, "p90_ms": p90_ms, "p99_ms": p99_ms}


def test_the_best_setting_is_that_of_least_p99() -> None:
    assert best_row([_row("a", 10.0, 40.0), _row("b", 12.0, 30.0)])["side"] == "b"


def test_a_setting_that_may_be_best_but_has_too_few_answers_is_not_passed_over() -> None:
    few = "too few answers (9 of 1,000)"
    assert best_row([_row("a", 10.0, few), _row("b", 12.0, 30.0)])["side"] == "a"
    assert best_row([_row("a", 40.0, few), _row("b", 12.0, 30.0)])["side"] == "b"


def test_short_runs_choose_by_their_p90() -> None:
    assert best_trial({"a": {"p90_ms": 9.0}, "b": {"p90_ms": 8.0}, "c": {}}) == "b"


def test_the_best_of_the_short_runs_and_the_confined_setting_take_part_in_the_rounds() -> None:
    """The confined one has the most throughput to hold against ours, best or not."""
    free, confined = {"p90_ms": 8.0}, {"p90_ms": 9.0}
    trials = {"triton free": free, "triton besteffort confined": confined, "triton one run": {}}
    assert taking_part(trials) == ["triton free", "triton besteffort confined"]
    assert taking_part({**trials, "triton free": {"p90_ms": 10.0}}) == [
        "triton besteffort confined"
    ]
    assert taking_part({}) == []
