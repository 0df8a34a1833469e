"""Learning that was ended at any moment leaves nothing that a later one takes for whole."""

from __future__ import annotations

import dataclasses
import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from brisk.exits.base_model import BaseModel, load_graph, taps_of
from brisk.exits.data.collecting import collect
from brisk.exits.data.samples import SampleGroups, Samples
from brisk.exits.exploration import ExplorationSettings, explore, explore_whole
from brisk.exits.files.learning_record import Aim, Stage
from brisk.exits.files.sample_files import write_samples
from brisk.exits.files.versions import make_private_folder, private_folder
from brisk.exits.learning.quantising import quantised
from brisk.exits.model_graph import ExitPoint, exit_points, read_graph
from brisk.exits.scores import ScoreForm, Scores, find_scores
from brisk.runtime.early_exit.learning_process import learn, look_at
from brisk.settings import tolerance
from support.exits.benchmarks import win_benchmarks
from support.exits.cascades import graph_of, images, network
from support.exits.texts import text_classifier, texts


class Killed(BaseException):
    """The end of the process, at the moment when a test raises it."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    win_benchmarks(monkeypatch)
    path = tmp_path / "model.onnx"
    make_private_folder(path)
    return path


@pytest.fixture
def no_system_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's temporary folder is not there: nothing can be left in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))


@pytest.mark.parametrize("way", ["ranges of samples", "ranges of each run"])
@pytest.mark.usefixtures("no_system_folder")
def test_quantising_works_in_the_folder_given_and_empties_it(
    file: Path, tmp_path: Path, way: str
) -> None:
    is_static = way == "ranges of samples"
    onnx.save(network() if is_static else text_classifier(), file)
    graph = read_graph(file)
    rows = {"image": images(64)} if is_static else texts(64)
    work = tmp_path / "work"
    left = work / "quantising"
    left.mkdir(parents=True)
    (left / "source.onnx").write_bytes(b"of a process that was killed")
    before = tempfile.tempdir
    quantised(graph, find_scores(graph), rows, work)
    assert list(work.iterdir()) == []
    assert tempfile.tempdir == before


@pytest.mark.usefixtures("no_system_folder")
def test_exploring_approximate_models_alone_needs_no_other_folder(
    file: Path, tmp_path: Path
) -> None:
    onnx.save(text_classifier(), file)
    work = tmp_path / "work"
    work.mkdir()
    samples = SampleGroups.of([Samples(texts(1200))])
    settings = ExplorationSettings(accuracy=0.9)
    found = explore_whole(file, samples, None, settings, folder=work)
    assert found.cascade is not None, found.reason
    assert list(work.iterdir()) == []


@pytest.mark.usefixtures("no_system_folder")
def test_exploring_caches_needs_no_other_folder(file: Path, tmp_path: Path) -> None:
    onnx.save(network(), file)
    settings = ExplorationSettings(accuracy=0.9, variants=("int8",))
    found = explore(file, Samples({"image": images(600, seed=3)}), tmp_path, settings)
    assert [way.name for way in found.ways] == ["int8-margin@0"]
    assert found.skipped == 0, "int8 is not trained at points"


@pytest.mark.usefixtures("no_system_folder")
def test_learning_from_traffic_leaves_nothing_behind(file: Path) -> None:
    onnx.save(network(tail="plain"), file)
    record = look_at(file, Aim(0.9, str(tolerance("cosine 0.98"))))
    for seed in range(12):
        write_samples(file, [{"image": images(100, seed=seed)}])
    outcome = learn(file, record, 1)
    assert outcome.stage is Stage.SERVED, outcome.reason
    assert not (private_folder(file) / "training").exists()


def killed(rows: int) -> None:
    raise Killed


Opened = tuple[BaseModel, list[ExitPoint], Scores]


@pytest.fixture(scope="module")
def opened() -> Opened:
    """A model that stops at two points."""
    graph = graph_of(network())
    scores = find_scores(graph)
    points = list(exit_points(graph, scores.position)[1:4:2])
    return load_graph(graph, taps=taps_of(points, scores, graph)), points, scores


def test_values_of_an_earlier_call_are_not_taken_for_those_of_one_that_was_killed(
    opened: Opened, tmp_path: Path
) -> None:
    base, points, scores = opened
    samples = Samples({"image": images(100)})
    collect(base, points[:1], scores, [samples], tmp_path)

    with pytest.raises(Killed):
        collect(base, points, scores, [samples], tmp_path, killed)
    again = collect(base, points, scores, [samples], tmp_path)
    (tmp_path / "fresh").mkdir()
    fresh = collect(base, points, scores, [samples], tmp_path / "fresh")
    pairs = zip((*again.hidden, again.teacher), (*fresh.hidden, fresh.teacher), strict=True)
    for found, expected in pairs:
        np.testing.assert_array_equal(found, expected)
        assert found[64:].any()


def test_zeros_of_a_call_that_was_killed_are_not_taken_for_values_after_one_with_other_points(
    opened: Opened, tmp_path: Path
) -> None:
    base, points, scores = opened
    samples = Samples({"image": images(100)})

    with pytest.raises(Killed):
        collect(base, points, scores, [samples], tmp_path, killed)
    collect(base, points[:1], scores, [samples], tmp_path)
    found = collect(base, points, scores, [samples], tmp_path)
    (tmp_path / "fresh").mkdir()
    fresh = collect(base, points, scores, [samples], tmp_path / "fresh")
    np.testing.assert_array_equal(found.hidden[1], fresh.hidden[1])
    assert found.hidden[1][64:].any()


def test_answers_of_another_output_are_not_taken_for_those_of_the_scores(
    opened: Opened, tmp_path: Path
) -> None:
    base, points, scores = opened
    samples = Samples({"image": images(40)})
    expected = np.array(collect(base, points, scores, [samples], tmp_path).teacher)
    as_shares = dataclasses.replace(scores, form=ScoreForm.PROBABILITIES)
    other = collect(base, points, as_shares, [samples], tmp_path).teacher
    assert not np.array_equal(other, expected)


def test_a_full_disk_is_said_before_anything_is_written_to_mapped_files(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written pages that find no room would end the process without a word."""
    base, points, scores = opened

    def full(descriptor: int, offset: int, size: int) -> None:
        assert (offset, size) == (0, os.fstat(descriptor).st_size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        collect(base, points, scores, [Samples({"image": images(40)})], tmp_path)
    assert raised.value.filename == str(tmp_path / f"hidden-{points[0].position}.npy")


def test_complete_values_are_read_again(opened: Opened, tmp_path: Path) -> None:
    base, points, scores = opened
    samples = Samples({"image": images(40)})
    collect(base, points, scores, [samples], tmp_path)
    times = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    done: list[int] = []
    collect(base, points, scores, [samples], tmp_path, done.append)
    assert done == [40], "all at once"
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == times


@pytest.mark.parametrize("change", ["fewer rows", "another shape", "fewer classes", "cut off"])
def test_values_that_do_not_fit_are_collected_again(
    opened: Opened, tmp_path: Path, change: str
) -> None:
    base, points, scores = opened
    samples = Samples({"image": images(40)})
    expected = collect(base, points, scores, [samples], tmp_path)
    hidden, teacher = (np.array(each) for each in (expected.hidden[1], expected.teacher))
    file = tmp_path / f"hidden-{points[1].position}.npy"
    if change == "fewer rows":
        file.unlink()
        np.save(file, hidden[:39])
    elif change == "another shape":
        file.unlink()
        np.save(file, hidden[:, :-1])
    elif change == "fewer classes":
        np.save(tmp_path / "teacher.npy", teacher[:, :-1])
    else:
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content[: len(content) // 2])
    found = collect(base, points, scores, [samples], tmp_path)
    np.testing.assert_array_equal(found.hidden[1], hidden)
    np.testing.assert_array_equal(found.teacher, teacher)
