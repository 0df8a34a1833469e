"""Learning from samples of the traffic alone, to caches that pay or to words that say why not."""

from __future__ import annotations

import errno
import importlib
import math
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from brisk.errors import InvalidModelError
from brisk.exits.adaptation.adapter import Adapter
from brisk.exits.adaptation.retraining import AdaptationSettings
from brisk.exits.cascade_file import digest_of, read_cascade
from brisk.exits.data.samples import Samples, divide
from brisk.exits.files.learning_record import (
    MOST_TRIES,
    Aim,
    LearningRecord,
    Stage,
    collected,
    read_record,
    write_record,
)
from brisk.exits.files.sample_files import write_samples
from brisk.exits.files.versions import (
    latest,
    learned_file,
    make_private_folder,
    private_folder,
    reference_file,
    samples_folder,
)
from brisk.exits.model_graph import read_graph
from brisk.runtime.early_exit import learning_process
from brisk.runtime.early_exit.learning_process import learn, look_at
from support.exits.adapted import Adapted
from support.exits.benchmarks import win_benchmarks
from support.exits.cascades import images, network
from support.exits.texts import text_classifier, texts


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(learning_process, "POINTS", 2)
    monkeypatch.setattr(learning_process, "VARIANTS", ("Pool(4096)",))


@pytest.fixture
def digits(tmp_path: Path, adapted: Adapted) -> Path:
    """The network, without caches."""
    file = tmp_path / "model.onnx"
    shutil.copy(adapted.model_file, file)
    make_private_folder(file)
    return file


def test_a_model_of_classes_is_looked_at_and_another_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(network(), file)
    record = look_at(file, Aim(0.97))
    assert (record.stage, record.wanted, record.collects) == (Stage.COLLECTING, 1345, True)
    strange = network()
    strange.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    (gemm,) = (node for node in strange.graph.node if node.op_type == "Gemm")
    gemm.output[0] = "before"
    strange.graph.node.insert(
        list(strange.graph.node).index(gemm) + 1,
        onnx.helper.make_node("Sigmoid", ["before"], [strange.graph.output[0].name]),
    )
    onnx.save(strange, file)
    answer = look_at(file, Aim(0.97))
    assert answer.stage is Stage.UNFIT
    assert not answer.collects
    assert "no class scores" in answer.reason
    assert answer.reason.startswith("set brisk_tolerance in the entry")


def test_where_the_server_alone_asks_the_model_itself_has_to_say_that_it_classifies(
    tmp_path: Path,
) -> None:
    file = tmp_path / "model.onnx"
    told = {}
    for tail in ("plain", "softmax", "labels", "written"):
        onnx.save(network(tail=tail), file)
        told[tail] = look_at(file, Aim(0.97, needs_classes=True))
    assert {tail for tail, each in told.items() if each.stage is Stage.COLLECTING} == {
        *("softmax", "labels"),
        "written",  # which samples show
    }
    assert told["plain"].stage is Stage.UNFIT
    assert told["plain"].is_final
    for words in ("may be values", "set brisk_accuracy in the entry", "brisk_tolerance if not"):
        assert words in told["plain"].reason
    onnx.save(network(tail="plain"), file)
    assert look_at(file, Aim(0.97)).stage is Stage.COLLECTING, "by the entry's own word"
    make_private_folder(file)
    write_samples(file, [{"image": images(300)}])
    record = LearningRecord(Stage.COLLECTING, Aim(0.9, needs_classes=True), 300)
    outcome = learn(file, record, 1)
    assert outcome.stage is Stage.UNFIT
    assert "may be values" in outcome.reason


def test_values_that_the_entry_takes_for_classes_are_refused(tmp_path: Path) -> None:
    """A forecast around 120: a predictor would learn that the same one is always the greatest."""
    file = tmp_path / "model.onnx"
    model = network(tail="plain")
    (gemm,) = (node for node in model.graph.node if node.op_type == "Gemm")
    hours = np.where(np.arange(10) == 6, 140, 120).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(hours, "hours"))
    gemm.input.append("hours")
    onnx.save(model, file)
    make_private_folder(file)
    write_samples(file, [{"image": images(300)}])
    assert look_at(file, Aim(0.9)).stage is Stage.COLLECTING
    outcome = learn(file, LearningRecord(Stage.COLLECTING, Aim(0.9), 300), 1)
    assert (outcome.stage, outcome.wanted) == (Stage.REFUSED, 600), "later traffic may have more"
    assert "100% of the data have one class" in outcome.reason
    assert "brisk_tolerance" in outcome.reason


def test_what_samples_teach_is_written_with_what_adaptation_goes_on_from(
    digits: Path, adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network this small gains nothing: so its benchmark is won, whatever the clock says."""
    win_benchmarks(monkeypatch)
    for start in range(0, 1700, 100):
        write_samples(digits, [{"image": adapted.images[start : start + 100]}])
    outcome = learn(digits, LearningRecord(Stage.COLLECTING, Aim(0.9), 1000), 1)
    assert (outcome.stage, outcome.samples, outcome.tries) == (Stage.SERVED, 1700, 1), (
        outcome.reason
    )
    assert outcome.speed_up == 2.0
    kinds = sorted(each.name.partition("@")[0] for each in outcome.ways)
    assert kinds == ["Pool(4096)", "Pool(4096)-gated-margin"]
    assert latest(digits) == learned_file(digits)
    assert learned_file(digits).stat().st_mode & 0o777 == 0o600
    cascade = read_cascade(learned_file(digits), digest_of(digits))
    assert cascade.levels[0].accuracy == 0.9
    assert cascade.confidence == pytest.approx(1 - 0.05 / 3), "three tries share the error"
    assert cascade.levels[0].count.inputs <= 0.26 * 1700, "the newest quarter has proved it"
    assert Adapter.open(digits, AdaptationSettings()) is not None
    assert not (private_folder(digits) / "training").exists(), "hidden values are not kept"


def test_where_hidden_values_find_no_room_int8_alone_is_tried(
    digits: Path, adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of photographs are megabytes a row."""
    win_benchmarks(monkeypatch)
    monkeypatch.setattr(learning_process, "HIDDEN_BYTES", 1 << 10)
    monkeypatch.setattr(learning_process, "VARIANTS", ("Pool(4096)", "int8"))
    write_samples(digits, [{"image": adapted.images}])
    outcome = learn(digits, LearningRecord(Stage.COLLECTING, Aim(0.9), 1000), 1)
    assert outcome.stage is Stage.SERVED, outcome.reason
    cascade = read_cascade(learned_file(digits), digest_of(digits))
    assert [exit_.name for exit_ in cascade.exits] == ["int8-margin@0"]
    assert not reference_file(digits).exists()


def test_without_gain_it_says_so_and_waits_for_twice_as_many_samples(
    digits: Path, adapted: Adapted
) -> None:
    """A network of a few microseconds: nothing pays."""
    record = LearningRecord(Stage.COLLECTING, Aim(0.97), 1000)
    for tries in range(1, MOST_TRIES + 1):
        while collected(digits)[0] < record.wanted:
            write_samples(digits, [{"image": adapted.images[:1000]}])
        write_record(digits, record)
        record = learn(digits, record, 1)
        assert (record.stage, record.tries) == (Stage.REFUSED, tries)
        assert record.reason
        assert all(0 <= each.early <= 1 < 100 / each.speed_up for each in record.ways)
        during = read_record(digits)
        assert during is not None
        assert during.stage is Stage.LEARNING, "who asks meanwhile sees it"
        assert during.tries == tries - 1, "who kills it meanwhile uses up no try"
        assert record.collects is (tries < MOST_TRIES)
    assert not learned_file(digits).exists()
    assert "does not pay" in record.words(1000)


def test_samples_of_another_form_and_damaged_ones_are_left_out(
    digits: Path, adapted: Adapted
) -> None:
    write_samples(digits, [{"image": images(300)}])
    write_samples(digits, [{"image": adapted.images[:300].astype(np.float64)}])
    write_samples(digits, [{"picture": adapted.images[:300]}])
    (samples_folder(digits) / "00000000000000000001-1-5.npz").write_bytes(b"PK\x03\x04 torn")
    write_samples(digits, [{"image": adapted.images[:50]}])
    samples = learning_process.read_samples(read_graph(digits), digits.parent)
    assert samples is not None
    (group,) = samples.groups
    assert group.inputs["image"].shape == (50, 1, 8, 8), "the model says what form"
    assert collected(digits)[0] == 50
    record = LearningRecord(Stage.COLLECTING, Aim(0.97), 1000)
    assert learn(digits, record, 1) == record, "no try is counted without the samples for it"
    refused = learn(digits, LearningRecord(Stage.COLLECTING, Aim(0.97), 50), 1)
    assert refused.stage is Stage.REFUSED
    assert "expected at least 200 different ones" in refused.reason


def test_rows_of_no_numbers_in_the_traffic_teach_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client's NaN must not end the learning from all others."""
    win_benchmarks(monkeypatch)
    monkeypatch.setattr(learning_process, "VARIANTS", ("int8",))
    file = tmp_path / "model.onnx"
    onnx.save(text_classifier(), file)
    make_private_folder(file)
    for seed in range(12):
        rows = texts(100, seed=seed)
        rows["mask"][3, 0], rows["mask"][4, 1] = math.nan, math.inf
        write_samples(file, [rows, texts(2, length=3) | {"mask": np.full((2, 3), np.nan, "f4")}])
    write_samples(file, [{name: array[:, :0] for name, array in texts(2).items()}])
    samples = learning_process.read_samples(read_graph(file), tmp_path)
    assert samples is not None
    assert [len(group) for group in samples.groups] == [98 * 12]
    outcome = learn(file, LearningRecord(Stage.COLLECTING, Aim(0.9), 1000), 1)
    assert (outcome.stage, outcome.samples) == (Stage.SERVED, 98 * 12), outcome.reason


@pytest.mark.parametrize("step", ["looking", "reading", "learning"])
def test_a_model_that_cannot_be_read_for_now_is_not_called_unfit_for_good(
    digits: Path, adapted: Adapted, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A server of files is away, or memory is short: another process tries again."""

    def fails(*_: object) -> None:
        raise InvalidModelError("cannot be read") from OSError(errno.EIO, "an error of a disk")

    write_samples(digits, [{"image": adapted.images[:300]}])
    record = LearningRecord(Stage.COLLECTING, Aim(0.9), 300)
    monkeypatch.setattr(learning_process, "_search" if step == "learning" else "read_graph", fails)
    with pytest.raises(InvalidModelError, match="cannot be read"):
        look_at(digits, Aim(0.9)) if step == "looking" else learn(digits, record, 1)
    during = read_record(digits)
    assert during is None or (during.stage, during.tries) == (Stage.LEARNING, 0)


def test_rows_that_the_model_itself_answers_with_nan_train_nothing(
    digits: Path, adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them would make NaN of all weights of every predictor."""
    win_benchmarks(monkeypatch)
    onnx.save(taking_the_root_of_a_corner(onnx.load(digits)), digits)
    images = adapted.images[:1700].copy()
    images[::50, 0, 0, 0] = -1
    write_samples(digits, [{"image": images}])
    outcome = learn(digits, LearningRecord(Stage.COLLECTING, Aim(0.9), 1000), 1)
    assert (outcome.stage, outcome.samples) == (Stage.SERVED, 1700), outcome.reason


def taking_the_root_of_a_corner(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with an image's corner pixel for a place where a negative number makes NaN
    of all answers, and any other changes none."""
    graph = model.graph
    for node in graph.node:
        node.input[:] = ["rooted" if name == "image" else name for name in node.input]
    sizes = {"corner.starts": [0, 0], "corner.ends": [1, 1], "corner.axes": [2, 3]}
    for name, values in sizes.items():
        graph.initializer.append(numpy_helper.from_array(np.array(values), name))
    graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "nothing"))
    make_node = onnx.helper.make_node
    nodes = [
        make_node("Slice", ["image", *sizes], ["corner"]),
        make_node("Sqrt", ["corner"], ["root"]),
        make_node("Mul", ["root", "nothing"], ["none"]),
        make_node("Add", ["image", "none"], ["rooted"]),
        *graph.node,
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def test_the_newest_rows_prove_and_nothing_else_does() -> None:
    rows = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    division = divide(Samples({"x": rows}), 0, proves_newest=True)
    assert sorted(division.calibrate) == list(range(750, 1000))
    others = np.concatenate([division.fit, division.select, division.tune])
    assert sorted(others) == list(range(750))
    assert len(division.fit) > len(division.tune) > len(division.select)


def test_a_copy_of_what_came_before_proves_nothing() -> None:
    rows = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    rows[900:] = rows[:100]
    division = divide(Samples({"x": rows}), 0, proves_newest=True)
    assert division.calibrate.max() < 900
    assert sorted(division.calibrate) == list(range(675, 900))


def test_a_model_replaced_while_it_is_learned_is_learned_again(
    digits: Path, adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file before has taught is not written with the digest of the new one."""
    win_benchmarks(monkeypatch)
    explore = importlib.import_module("brisk.exits.exploration.explore")
    run_trials = explore.run_trials

    def replacing(*arguments: object) -> None:
        run_trials(*arguments)
        onnx.save(network(), digits.with_suffix(".new"))
        digits.with_suffix(".new").rename(digits)

    monkeypatch.setattr(explore, "run_trials", replacing)
    write_samples(digits, [{"image": adapted.images}])
    record = LearningRecord(Stage.COLLECTING, Aim(0.9), 1000)
    assert learn(digits, record, 1) == record
    assert not learned_file(digits).exists()
