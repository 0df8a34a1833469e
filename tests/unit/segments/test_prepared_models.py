"""Prepared forms: they answer as ONNX Runtime does, in place, and are used whole or not at all."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brisk.segments.model.sources import BareModel
from brisk.segments.onnxruntime import OrtSession, onnxruntime
from brisk.segments.prepared import form as prepared
from brisk.segments.prepared import manifest
from brisk.segments.prepared.form import PreparedModel
from brisk.segments.prepared.preparation import prepare
from brisk.segments.prepared.saving import save_optimised
from brisk.segments.source import Source
from brisk.tuning import SessionTuning
from support.models.segment_models import info, run_in_turn, save, whole

pytestmark = pytest.mark.usefixtures("private_cache", "short_segments")

ROWS = np.random.default_rng(3).standard_normal((5, 512)).astype(np.float32)
THREADS = 2


def optimised(path: Path, inputs: Mapping[str, np.ndarray], folder: Path) -> dict:
    """The answers of the sessions that were optimised and saved, themselves."""
    bare = BareModel(path, THREADS)
    sessions = []
    for segment in bare.segments:
        place = folder / f"whole-{segment.spec.index}"
        place.mkdir()
        sessions.append(save_optimised(segment, bare.file, THREADS, place)[1])

    class Optimised(Source):
        plan = bare.plan

        def open(self, index: int) -> OrtSession:
            return OrtSession(sessions[index], ())

        def open_warm(self, index: int) -> OrtSession | None:
            return None

    return run_in_turn(Optimised(), inputs)


def images(path: Path) -> Path:
    """Convolutions whose weights ONNX Runtime lays out anew: x ``[1, 16, 32, 32]`` to y."""
    rng = np.random.default_rng(1)
    nodes, weights, previous = [], {}, "x"
    for layer in range(6):
        weights[f"w{layer}"] = (rng.standard_normal((16, 16, 3, 3)) / 12).astype("f4")
        nodes += [
            helper.make_node("Conv", [previous, f"w{layer}"], [f"c{layer}"], pads=[1] * 4),
            helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]),
        ]
        previous = f"r{layer}"
    nodes.append(helper.make_node("GlobalAveragePool", [previous], ["y"]))
    shape = (1, 16, 32, 32)
    return save(path, nodes, [info("x", *shape)], [info("y", 1, 16, 1, 1)], weights)


def test_answers_are_those_of_the_optimised_sessions_bit_for_bit(
    model: Path, tmp_path: Path
) -> None:
    source = PreparedModel(prepare(model, THREADS).path, model, THREADS)
    assert len(source.plan.segments) >= 4
    assert source.plan == BareModel(model, THREADS).plan
    expected = optimised(model, {"x": ROWS}, tmp_path)["y"]
    np.testing.assert_array_equal(run_in_turn(source, {"x": ROWS})["y"], expected)
    for warm in (False, True):
        answer = run_in_turn(source, {"x": ROWS}, warm=warm)["y"]
        np.testing.assert_allclose(answer, whole(model, {"x": ROWS})["y"], rtol=1e-4, atol=1e-5)


def test_convolutions_have_their_weights_in_the_layout_of_the_kernels(tmp_path: Path) -> None:
    path = images(tmp_path / "images.onnx")
    made = prepare(path, THREADS)
    source = PreparedModel(made.path, path, THREADS)
    image = np.random.default_rng(2).standard_normal((1, 16, 32, 32)).astype("f4")
    answer = run_in_turn(source, {"x": image})["y"]
    np.testing.assert_array_equal(answer, optimised(path, {"x": image}, tmp_path)["y"])
    np.testing.assert_allclose(answer, whole(path, {"x": image})["y"], rtol=1e-4, atol=1e-5)


def test_weights_are_computed_with_where_they_are_mapped(model: Path) -> None:
    made = prepare(model, THREADS)
    source = PreparedModel(made.path, model, THREADS, shares=False)
    container = source.container
    begin = container.memory.ctypes.data
    count = 0
    for segment in source.plan.segments:
        for value in source.open(segment.index).held:
            assert begin <= value.data_ptr() < begin + container.memory.size
            assert value.data_ptr() % 64 == 0
            count += 1
    assert count == 12


def test_copies_of_a_model_run_in_one_session_for_as_long_as_one_of_them_needs_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "LEAST_GAIN", 0.0)  # else each goes by what it has measured
    copy = tmp_path / "elsewhere" / "another.onnx"
    copy.parent.mkdir()
    shutil.copyfile(model, copy)
    first, second = (
        PreparedModel(prepare(each, THREADS).path, each, THREADS, shares=False)
        for each in (model, copy)
    )
    opened = [first.open(0), first.open_warm(1)]
    assert [second.open(0), second.open_warm(1)] == opened
    seen = weakref.ref(opened[0])
    opened.clear()
    gc.collect()
    assert seen() is None


def test_models_of_other_weights_share_no_session_of_their_own(
    model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.onnx"
    proto = onnx.load(model)
    changed = next(each for each in proto.graph.initializer if len(each.raw_data) > 4096)
    values = np.frombuffer(changed.raw_data, "f4").copy()
    values[-1] += 1
    changed.raw_data = values.tobytes()
    onnx.save(proto, other)
    first, second = (
        PreparedModel(prepare(each, THREADS).path, each, THREADS, shares=False)
        for each in (model, other)
    )
    opened = [(first.open(index), second.open(index)) for index in range(len(first.kept))]
    assert [one is not another for one, another in opened].count(True) == 1


def test_sessions_of_other_threads_or_settings_are_not_shared(model: Path) -> None:
    path = prepare(model, THREADS).path
    sources = [
        PreparedModel(path, model, THREADS),
        PreparedModel(path, model, THREADS + 1),
        PreparedModel(path, model, THREADS, tuning=SessionTuning(uses_arena=False)),
    ]
    assert len({id(each.open(0)) for each in sources}) == 3


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each session of the form that is asked for packs its weights; none is made."""
    found: list[bool] = []

    def see(*_: object, packs: bool, **_others: bool) -> OrtSession:
        found.append(packs)
        return OrtSession(None, ())

    monkeypatch.setattr(prepared, "open_saved", see)
    return found


@pytest.mark.parametrize("threads", [1, 2])
def test_a_session_packs_only_where_that_was_measured_to_gain(
    model: Path, threads: int, asked: list[bool]
) -> None:
    source = PreparedModel(prepare(model, threads).path, model, threads, shares=False)
    assert all(each.gain is not None and each.gain > 0 for each in source.kept)
    least, least_batch = manifest.LEAST_GAIN, manifest.LEAST_BATCH_GAIN
    measured: list[tuple[float | None, float | None, bool]] = [
        (least, None, True),
        (least - 0.01, None, False),
        (least - 0.01, least_batch - 0.01, False),
        (least - 0.01, least_batch, True),
        (None, None, True),
    ]
    for gain, batch_gain, packs in measured:
        source.kept = tuple(
            replace(each, gain=gain, batch_gain=batch_gain) for each in source.kept
        )
        asked.clear()
        source.open_warm(0)
        assert asked == ([packs] if packs or threads > 1 else [])


def test_a_row_alone_is_computed_on_mapped_weights_where_packing_pays_for_batches(
    model: Path, asked: list[bool]
) -> None:
    source = PreparedModel(prepare(model, 1).path, model, 1, shares=False)
    more, less = manifest.LEAST_GAIN, manifest.LEAST_GAIN - 0.01
    for gain, packs in ((more, [True, True]), (less, [True, False])):
        source.kept = tuple(replace(each, gain=gain, batch_gain=9.0) for each in source.kept)
        asked.clear()
        first = source.open_warm(0)
        assert first is not None
        del first
        gc.collect()
        source.open_for_a_row(0)
        assert asked == packs


def test_a_memory_pattern_is_used_only_where_that_was_measured_to_gain(model: Path) -> None:
    path = prepare(model, THREADS).path
    source = PreparedModel(path, model, THREADS, shares=False)
    assert all(each.pattern_gain is not None and each.pattern_gain > 0 for each in source.kept)
    least = manifest.LEAST_PATTERN_GAIN
    for gain, uses in ((least, True), (least - 0.001, False), (None, True)):
        source.kept = tuple(replace(each, pattern_gain=gain) for each in source.kept)
        assert source.open(0).session.get_session_options().enable_mem_pattern is uses
    for wish in (False, True):
        tuning = SessionTuning(uses_memory_pattern=wish)
        asked = PreparedModel(path, model, THREADS, tuning=tuning, shares=False)
        assert asked.open(0).session.get_session_options().enable_mem_pattern is wish


def test_a_start_reads_neither_the_model_nor_torch(model: Path) -> None:
    made = prepare(model, THREADS)
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "import onnx.shape_inference as inference, brisk.segments.model.model_file as files\n"
        "from brisk.segments.model import sources\n"
        "from brisk.segments.prepared.form import PreparedModel\n"
        "inference.infer_shapes = files.read_model_file = sources.read_model_file = None\n"
        "source = PreparedModel(Path(sys.argv[1]), Path(sys.argv[2]), 1)\n"
        "[source.open(index) for index in range(len(source.plan.segments))]\n"
        "assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script, str(made.path), str(model)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_weights_that_segments_share_are_kept_once(tmp_path: Path) -> None:
    weight = (np.random.default_rng(7).standard_normal((512, 512)) / 23).astype("f4")
    nodes, previous = [], "x"
    for layer in range(8):
        nodes += [
            helper.make_node("MatMul", [previous, "w"], [f"m{layer}"]),
            helper.make_node("Tanh", [f"m{layer}"], [f"t{layer}"]),
        ]
        previous = f"t{layer}"
    nodes.append(helper.make_node("Identity", [previous], ["y"]))
    ends = ([info("x", "n", 512)], [info("y", "n", 512)])
    path = save(tmp_path / "shared.onnx", nodes, *ends, {"w": weight})
    made = prepare(path, THREADS)
    assert len(made.plan.segments) > 2
    assert made.path.stat().st_size < 2 * weight.nbytes
    answer = run_in_turn(PreparedModel(made.path, path, THREADS), {"x": ROWS})["y"]
    np.testing.assert_allclose(answer, whole(path, {"x": ROWS})["y"], rtol=1e-4, atol=1e-5)


def _with_strings(path: Path) -> Path:
    words = np.array([f"word {number} {'x' * 20}" for number in range(512)], object)
    table = helper.make_tensor("t", TensorProto.STRING, [512], [each.encode() for each in words])
    made = save(
        path,
        [helper.make_node("Gather", ["t", "i"], ["y"])],
        [info("i", "n", kind=TensorProto.INT64)],
        [info("y", "n", kind=TensorProto.STRING)],
    )
    proto = onnx.load(made)
    proto.graph.initializer.append(table)
    onnx.save(proto, made)
    return made


def _with_sparse(path: Path) -> Path:
    made = save(
        path,
        [helper.make_node("MatMul", ["x", "s"], ["y"])],
        [info("x", "n", 512)],
        [info("y", "n", 8)],
    )
    proto = onnx.load(made)
    values = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "s")
    places = numpy_helper.from_array(np.array([1, 4000], np.int64), "s_indices")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [512, 8]))
    onnx.save(proto, made)
    return made


CASES = {
    "strings": (_with_strings, {"i": np.array([3, 511], np.int64)}),
    "sparse weights": (_with_sparse, {"x": ROWS}),
}


@pytest.mark.parametrize("name", CASES)
def test_models_with_parts_that_cannot_be_mapped_answer_all_the_same(
    tmp_path: Path, name: str
) -> None:
    build, inputs = CASES[name]
    path = build(tmp_path / "model.onnx")
    source = PreparedModel(prepare(path, THREADS).path, path, THREADS)
    answer, expected = run_in_turn(source, inputs)["y"], whole(path, inputs)["y"]
    if expected.dtype == object:
        assert answer.tolist() == expected.tolist()
    else:
        np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


def test_sessions_outlive_the_replacement_and_the_removal_of_their_file(model: Path) -> None:
    path = prepare(model, THREADS).path
    source = PreparedModel(path, model, THREADS)
    before = run_in_turn(source, {"x": ROWS})["y"]
    prepare(model, THREADS)
    np.testing.assert_array_equal(run_in_turn(source, {"x": ROWS})["y"], before)
    path.unlink()
    np.testing.assert_array_equal(run_in_turn(source, {"x": ROWS})["y"], before)


def test_onnx_runtime_is_the_one_that_is_here() -> None:
    assert onnxruntime().__version__ in prepared.fingerprint()["engine"]
