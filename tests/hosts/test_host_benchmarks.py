"""`brisk bench sourcing` and `streamed` with a tiny model: every side answers rightly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk_client.benchmarks import sourcing, streamed
from brisk_client.benchmarks.sourcing import cloud, levels, tuned
from brisk_client.fleet.links import Carried, Links
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
def _whatever_links_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is judged by it here, and other tests run beside."""

    def measured(links: Links) -> list[Carried]:
        return links.measure(1)

    monkeypatch.setattr(Links, "check", measured)


def test_every_level_and_a_fine_tune_answer(model: Path) -> None:
    parts = [levels.PART, tuned.PART]
    report = sourcing.run(parts=parts, model=str(model), rounds=1)
    found = [row["level"] for row in report.rows if row["part"] == levels.PART]
    assert sorted(found) == sorted(levels.LEVELS)
    assert len(report.rows) == len(levels.LEVELS) + len(tuned.SIDES)
    assert all(row["first_s"] > 0 for row in report.rows)
    by_level = {row["level"]: row for row in report.rows if "level" in row}
    assert by_level[levels.DISK]["cached_mb"] < by_level[levels.MEMORY]["cached_mb"]
    assert by_level[levels.PEER_MEMORY]["from_peer"] > 0


def test_a_model_in_a_bucket_answers(model: Path) -> None:
    report = sourcing.run(parts=[cloud.PART], model=str(model), rounds=1)
    assert {row["side"] for row in report.rows} == set(cloud.SIDES)


def test_each_file_of_a_folder_is_streamed_and_one_that_is_no_model_is_told(model: Path) -> None:
    (model.parent / "broken.onnx").write_bytes(b"no model")
    report = streamed.run(models=[model.parent], rounds=1)
    broken, *rows = report.rows
    assert broken["model"] == "broken"
    assert "not an ONNX model" in broken["reason"]
    assert [row["side"] for row in rows] == list(streamed.SIDES)
    assert all(row["first_s"] >= row["ready_s"] > 0 for row in rows)
