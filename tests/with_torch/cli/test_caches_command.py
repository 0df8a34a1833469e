"""``brisk caches train`` and ``show``, really run on small models and data."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.cli.commands.caches.train import NOTHING_WRITTEN
from brisk.errors import InvalidConfigurationError, InvalidModelError, InvalidRequestError
from brisk.exits.adaptation.reference import read_reference
from brisk.exits.cascade_file import digest_of, read_cascade
from brisk.exits.data import reading
from brisk.exits.data.samples import Samples
from brisk.exits.exploration import measuring, trial
from brisk.exits.exploration.trial import Trial, run_trial
from brisk.exits.files.versions import caches_file, learned_file, make_private_folder
from brisk.exits.model_graph import ModelGraph
from brisk_bench.samples.writer import GraphWriter
from support.exits.benchmarks import win_benchmarks

SIDE, CLASSES, CHANNELS = 24, 4, 16


def slow_network(
    layers: int = 24, tail: str = "ArgMax", block: int | None = None
) -> onnx.ModelProto:
    """Classifies by what its first layer sees; all others hand that on, which takes its time.

    ``block``: layers in a residual block, which has exit points at its ends only, so that noise
    of the profile moves none.
    """
    random = np.random.default_rng(0)
    graph = GraphWriter("slow", opset=18)
    value = graph.input("image", "float32", ("batch", 1, SIDE, SIDE))
    first = np.abs(random.normal(0, 0.3, (CHANNELS, 1, 3, 3)))
    weights = [first] + [np.zeros((CHANNELS, CHANNELS, 3, 3)) for _ in range(layers - 1)]
    for weight in weights[1:]:
        weight[range(CHANNELS), range(CHANNELS), 1, 1] = 1
    for number, weight in enumerate(weights, start=1):
        if block and number % block == 1:
            entering = value if number > 1 else None
        value = graph.add("Conv", value, graph.weight(weight), pads=[1, 1, 1, 1])
        value = graph.add("Relu", value)
        if block and number % block == 0 and entering is not None:
            both = graph.add("Add", value, entering)
            value = graph.add("Mul", both, graph.weight(np.array(0.5)))
    value = graph.add("AveragePool", value, kernel_shape=[SIDE // 2] * 2, strides=[SIDE // 2] * 2)
    value = graph.add("Flatten", value)
    corners = np.eye(4).repeat(1, 0)
    classify = np.concatenate([corners] * CHANNELS) * 3
    value = graph.add("Gemm", value, graph.weight(classify))
    if tail == "ArgMax":
        graph.output(value, "scores", "float32", ("batch", CLASSES))
        label = graph.add("ArgMax", value, axis=1, keepdims=0)
        graph.output(label, "label", "int64", ("batch",))
    else:
        graph.output(graph.add(tail, value), "embedding", "float32", ("batch", CLASSES))
    return graph.model()


def corners(count: int) -> np.ndarray:
    """Images of which one quarter is bright."""
    random = np.random.default_rng(1)
    images = random.uniform(0, 0.3, (count, 1, SIDE, SIDE)).astype(np.float32)
    half = SIDE // 2
    for row, corner in enumerate(random.integers(0, 4, count)):
        down, right = (int(corner) // 2) * half, (int(corner) % 2) * half
        images[row, 0, down : down + half, right : right + half] += 0.7
    return images


@pytest.fixture(autouse=True)
def _short_benchmarks() -> Iterator[None]:
    """Real benchmarks, of as many rows as end in a second: most of the network can be saved."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measuring, "BENCHMARK_SECONDS", 1.0)
        yield


def own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "cache").mkdir()
    monkeypatch.setenv("BRISK_CACHE_DIR", str(folder / "cache"))


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An entry with the slow network, and data beside it."""
    own_cache(tmp_path, monkeypatch)
    return put(tmp_path, slow_network(layers=24))


@pytest.fixture
def small_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As ``entry``, for what is said whether caches would pay or not."""
    own_cache(tmp_path, monkeypatch)
    return put(tmp_path, slow_network(layers=15))


def put(folder: Path, model: onnx.ModelProto, rows: int = 1000) -> Path:
    entry = folder / "entry"
    (entry / "1").mkdir(parents=True)
    onnx.save(model, entry / "1" / "model.onnx")
    np.savez(folder / "data.npz", image=corners(rows))
    return entry


def train(entry: Path, *options: str) -> Any:
    data = str(entry.parent / "data.npz")
    chosen = ["--variants", "Pool(4096)", "--points", "2", "--jobs", "1", *options]
    return CliRunner().invoke(
        application, ["caches", "train", str(entry), "--data", data, *chosen]
    )


def left_behind(entry: Path) -> list[Path]:
    return sorted((entry.parent / "cache").glob("training/*/*"))


def test_trained_caches_lie_beside_the_model_and_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(tmp_path, monkeypatch)
    entry = put(tmp_path, slow_network(layers=24, block=6), rows=1000)
    made = train(entry)
    assert made.exit_code == 0, made.output
    file = entry / "1" / "model.onnx"
    assert f"written: {caches_file(file)}" in made.stdout
    cascade = read_cascade(caches_file(file), digest_of(file))
    assert cascade.revision == 0
    answered = sum(one.answered for one in cascade.levels[0].count.exits)
    assert answered > 0.9 * cascade.levels[0].count.inputs
    reference = file.with_suffix(".reference")
    assert stat.S_IMODE(reference.stat().st_mode) == 0o600
    assert left_behind(entry) == []
    pictures = entry.parent / "pictures"
    shown = CliRunner().invoke(
        application, ["caches", "show", str(entry), "--plot", str(pictures)]
    )
    assert shown.exit_code == 0, shown.output
    assert cascade.exits[0].name in shown.stdout
    assert "proved with 95% confidence" in shown.stdout
    (picture,) = pictures.iterdir()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"drawn: {picture}" in shown.stdout
    exported = CliRunner().invoke(
        application, ["caches", "export", str(entry), str(entry.parent / "exits")]
    )
    assert exported.exit_code == 0, exported.output
    for exit_ in cascade.exits:
        onnx.checker.check_model(entry.parent / "exits" / f"{exit_.name}.onnx")
        assert f"reads '{exit_.point.value}'" in exported.stdout
    reference.unlink()
    shown = CliRunner().invoke(
        application, ["caches", "show", str(entry), "--plot", str(pictures)]
    )
    assert isinstance(shown.exception, InvalidModelError)
    assert "--plot measures with the data that" in str(shown.exception)
    onnx.save(slow_network(layers=59), file)
    shown = CliRunner().invoke(application, ["caches", "show", str(entry)])
    assert isinstance(shown.exception, InvalidModelError)
    assert "it was trained for another model" in str(shown.exception)


def test_an_interrupted_training_goes_on_where_it_was(
    entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    win_benchmarks(monkeypatch)  # what is compared is what is trained
    started: list[Trial] = []

    def interrupted(trial: Trial) -> Path:
        started.append(trial)
        if len(started) == 2:
            raise KeyboardInterrupt
        return run_trial(trial)

    monkeypatch.setattr(trial, "run_trial", interrupted)
    assert train(entry, "--points", "4").exit_code != 0
    first = started[0].file
    assert first.exists()
    later: list[Path] = []

    def watched(trial: Trial) -> Path:
        later.append(trial.file)
        return run_trial(trial)

    monkeypatch.setattr(trial, "run_trial", watched)
    made = train(entry, "--points", "4", "--no-keep-data")
    assert made.exit_code == 0, made.output
    assert first not in later
    assert later
    assert caches_file(entry / "1" / "model.onnx").exists()
    assert not (entry / "1" / "model.reference").exists(), "no data is kept, as was wanted"


def test_what_an_interrupted_training_left_of_another_output_is_not_taken_for_this_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(tmp_path, monkeypatch)
    win_benchmarks(monkeypatch)
    model = slow_network(layers=6)
    entry = put(tmp_path, model)
    (features,) = (node.output[0] for node in model.graph.node if node.op_type == "Flatten")
    started: list[Trial] = []

    def interrupted(trial: Trial) -> Path:
        started.append(trial)
        if len(started) == 2:
            raise KeyboardInterrupt
        return run_trial(trial)

    with monkeypatch.context() as patched:
        patched.setattr(trial, "run_trial", interrupted)
        assert train(entry, "--output", features).exit_code != 0
    assert started[0].file.exists()
    made = train(entry, "--output", "scores")
    assert made.exit_code == 0, made.output
    file = entry / "1" / "model.onnx"
    assert read_cascade(caches_file(file), digest_of(file)).scores.classes == CLASSES


def test_the_data_of_training_lie_beside_the_caches_where_others_were_learned_before(
    entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    win_benchmarks(monkeypatch)
    file = entry / "1" / "model.onnx"
    make_private_folder(file)
    learned_file(file).write_bytes(b"learned from the traffic")
    their_data = learned_file(file).with_suffix(".reference")
    their_data.write_bytes(b"samples of the traffic")
    made = train(entry)
    assert made.exit_code == 0, made.output
    assert f"written: {file.with_suffix('.reference')}" in made.stdout
    read_reference(file.with_suffix(".reference"), digest_of(file))
    assert their_data.read_bytes() == b"samples of the traffic"


def test_caches_that_would_slow_the_model_down_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(tmp_path, monkeypatch)
    entry = put(tmp_path, slow_network(layers=1))
    made = train(entry)
    assert made.exit_code == NOTHING_WRITTEN, made.output
    assert "no caches were written: " in made.stdout
    assert not caches_file(entry / "1" / "model.onnx").exists()


def test_copies_of_the_model_lie_in_no_folder_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that is killed would leave them there."""
    own_cache(tmp_path, monkeypatch)
    entry = put(tmp_path, slow_network(layers=4, tail="Identity"), rows=300)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    result = train(entry, "--variants", "int8", "--tolerance", "cosine 0.9", "--accuracy", "0.9")
    assert result.exit_code in (0, NOTHING_WRITTEN), result.output
    assert "quantise" not in result.output, result.output
    assert list((tmp_path / "cache" / "training").iterdir()) == []


def test_a_memory_budget_that_nothing_fits_is_said(small_entry: Path) -> None:
    made = train(small_entry, "--memory-budget", "100")
    assert made.exit_code == NOTHING_WRITTEN, made.output
    assert "no caches were written: " in made.stdout
    assert "larger than the memory budget" in made.stdout


def test_an_accuracy_that_the_data_cannot_prove_is_said(
    small_entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is trained: with confidence c, n right answers prove (1 - c)^(1/n). Data are
    read once: images are decoded for minutes."""
    read: list[Path] = []
    read_file = reading._read_file

    def watched(file: Path, graph: ModelGraph) -> list[Samples]:
        read.append(file)
        return read_file(file, graph)

    monkeypatch.setattr(reading, "_read_file", watched)
    answer = train(small_entry, "--accuracy", "0.999")
    assert isinstance(answer.exception, InvalidRequestError)
    text = str(answer.exception)
    assert "is proved by 2995 held-out samples and more" in text
    assert "of these 1000 200 are held out, which prove 98.5% at best" in text
    assert "give some 14975" in text
    assert read == [small_entry.parent / "data.npz"]


def test_where_nothing_is_fitted_other_data_leave_no_more_rows_to_prove_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(tmp_path, monkeypatch)
    entry = put(tmp_path, slow_network(layers=2, tail="Identity"))
    values = "--tolerance", "cosine 0.9", "--accuracy", "0.99"
    answer = train(entry, *values, "--fit-data", str(tmp_path / "data.npz"))
    assert "of these 1000 200 are held out" in str(answer.exception)


@pytest.mark.parametrize(("accuracy", "needed"), [("0.5", 200), ("0.97", 495), ("0.99", 1495)])
def test_as_many_samples_are_asked_for_as_the_promise_takes_however_few_there_are(
    small_entry: Path, accuracy: str, needed: int
) -> None:
    """Who gives what the message says is not told of more by the next one."""
    data = small_entry.parent / "data.npz"
    np.savez(data, image=corners(50))
    answer = train(small_entry, "--accuracy", accuracy)
    assert f"expected at least {needed} different ones" in str(answer.exception)
    if needed > 200:
        np.savez(data, image=corners(250))
        answer = train(small_entry, "--accuracy", accuracy)
        assert f"give some {needed}," in str(answer.exception)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"image": np.zeros((300, 3, SIDE, SIDE), np.float32)}, "input 'image' is float32"),
        ({"a": corners(300), "b": corners(300)}, "has no array image; it has a, b"),
        ({"image": corners(1)}, "there is 1 sample .* expected at least 495"),
        ({"image": np.full((300, 1, SIDE, SIDE), np.nan, np.float32)}, "infinite values"),
    ],
)
def test_data_that_does_not_fit_is_refused_in_words(
    small_entry: Path, arrays: dict[str, np.ndarray], text: str
) -> None:
    np.savez(small_entry.parent / "data.npz", **arrays)
    answer = train(small_entry)
    assert isinstance(answer.exception, InvalidRequestError)
    with pytest.raises(InvalidRequestError, match=text):
        raise answer.exception


def test_a_model_that_does_not_classify_is_refused_before_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(tmp_path, monkeypatch)
    entry = put(tmp_path, slow_network(layers=3, tail="LpNormalization"))
    (tmp_path / "data.npz").write_bytes(b"not even data")
    answer = train(entry)
    assert isinstance(answer.exception, InvalidModelError)
    assert str(answer.exception).startswith("set brisk_tolerance in the entry")
    assert "model 'entry' has no class scores" in str(answer.exception)
    assert "a tolerance that says which values count" in str(answer.exception)
    assert '--tolerance "cosine 0.99"' in str(answer.exception)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--accuracy", "1.2", "--accuracy must be from 0.5 to below 1, not 1.2"),
        ("--memory-budget", "much", "--memory-budget must be bytes"),
        ("--memory-budget", "9" * 5000, "--memory-budget must be bytes"),
        ("--look-ups", "never", "--look-ups must be one of"),
        ("--seed", "-1", "--seed must be at least 0, not -1"),
        ("--scale", "0", "--scale must be a number above 0, not 0.0"),
        ("--mean", "0.5,x", "--mean must be numbers separated by commas, not '0.5,x'"),
        ("--mean", "nan", "--mean must be finite numbers, not nan"),
        ("--deviation", "0.2,-1,1", "--deviation must be numbers above 0, not -1.0"),
        ("--variants", "Pool(1)", "there is no cache variant 'Pool(1)'"),
    ],
)
def test_a_wrong_option_is_named(small_entry: Path, option: str, value: str, text: str) -> None:
    answer = train(small_entry, option, value)
    assert isinstance(answer.exception, InvalidConfigurationError)
    assert text in str(answer.exception)


def test_showing_says_where_there_are_no_caches(small_entry: Path) -> None:
    answer = CliRunner().invoke(application, ["caches", "show", str(small_entry)])
    assert isinstance(answer.exception, InvalidModelError)
    assert "has no caches; `brisk caches train" in str(answer.exception)


def test_showing_says_that_an_entry_learns_from_its_traffic(small_entry: Path) -> None:
    (small_entry / "config.pbtxt").write_text(
        'parameters { key: "brisk_accuracy" value { string_value: "0.98" } }'
    )
    answer = CliRunner().invoke(application, ["caches", "show", str(small_entry)])
    assert isinstance(answer.exception, InvalidModelError)
    text = str(answer.exception)
    assert "has no caches yet: brisk_accuracy 0.98 is learned from the traffic" in text
    assert "0 of 2,027 samples are there; `brisk status`" in text
