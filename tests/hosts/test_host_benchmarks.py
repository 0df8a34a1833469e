"""`brisk bench sourcing` and `streamed` with a tiny model: every side answers rightly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk_bench import sourcing, streamed
from brisk_bench.fleet.links import Carried, Links
from brisk_bench.sourcing import levels
from support.models.segment_models import info, save

pytestmark = [
    *(pytest.mark.hosts, pytest.mark.server, pytest.mark.timing, pytest.mark.beside),
    pytest.mark.usefixtures("_any_rights"),
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = {"w": np.random.default_rng(0).standard_normal((512, 512)).astype("f4")}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    file = tmp_path / "tiny.onnx"
    return save(file, nodes, [info("x", "n", 512)], [info("y", "n", 512)], weights)


@pytest.fixture(autouse=True)
def _links_as_they_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is judged by what they carry, nor by any figure, and other tests run beside."""

    def carried(links: Links) -> list[Carried]:
        names = ("registry", "peer")
        return [Carried((name,), ("host",), 200.0, (191.0,)) for name in names]

    monkeypatch.setattr(Links, "check", carried)
    monkeypatch.setenv("_BRISK_BENCH_REST_S", "0.1")  # in programs of hosts


def test_every_level_answers(model: Path) -> None:
    report = sourcing.run(parts=[levels.PART], model=str(model), rounds=1)
    found = {row["level"]: row for row in report.rows}
    assert sorted(found) == sorted(levels.LEVELS)
    assert all(row["first_s"] > 0 for row in report.rows)
    assert found[levels.DISK]["cached_mb"] < found[levels.MEMORY]["cached_mb"]


def test_each_file_of_a_folder_is_streamed_and_one_that_is_no_model_is_told(model: Path) -> None:
    (model.parent / "broken.onnx").write_bytes(b"no model")
    report = streamed.run(models=[model.parent], rounds=1)
    broken, *rows = report.rows
    assert broken["model"] == "broken"
    assert "not a complete ONNX model" in broken["reason"]
    assert [row["side"] for row in rows] == list(streamed.SIDES)
    assert all(row["first_s"] >= row["ready_s"] > 0 for row in rows)
