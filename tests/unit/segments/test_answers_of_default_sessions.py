"""Whatever a model is computed by, from its first session to its prepared form, it answers as
ONNX Runtime's own session of the file does: quantised networks are where that is not the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.errors import ArtefactError, InvalidModelError
from brisk.runtime.sessions.own_file import MendedModel, OwnFile
from brisk.segments.frame import run_serially
from brisk.segments.model import cutting
from brisk.segments.model.sources import BareModel
from brisk.segments.onnxruntime import onnxruntime
from brisk.segments.prepared.form import PreparedModel
from brisk.segments.prepared.oracle import WholeModel, are_alike, differing_output
from brisk.segments.prepared.preparation import prepare
from brisk.segments.source import Source
from brisk.segments.starting import StartingSegments, start_segments
from brisk.tuning import SessionTuning
from support.models.quantised_models import (
    CASES,
    Quantised,
    QuantisedGraph,
    called_quantisers,
    chain_on_integers,
    layers_of_four_bits,
    product_of,
)
from support.models.segment_models import chain, whole

pytestmark = pytest.mark.usefixtures("private_cache")

THREADS = 1


def written(case: Quantised, folder: Path) -> Path:
    (folder / "model.onnx").write_bytes(case.model.SerializeToString())
    return folder / "model.onnx"


def stages(
    path: Path, several: Sequence[Mapping[str, np.ndarray]]
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """The only output for each of these inputs, by each program that requests may meet."""

    def answers(starting: StartingSegments) -> list[np.ndarray]:
        found = [run_serially(starting.program, inputs) for inputs in several]
        return [output for outputs in found for output in outputs.values()]

    prepared = prepare(path, THREADS).path
    sources: Mapping[str, Source] = {
        "first": BareModel(path, THREADS),
        "awaited": BareModel(path, THREADS, is_awaited=True),
        "cut everywhere": BareModel(path, THREADS, longest_ns=0),
        "prepared": PreparedModel(prepared, path, THREADS),
    }
    for name, source in sources.items():
        starting = start_segments(source)
        yield name, answers(starting)
        assert starting.load_warm(lambda: True)
        yield f"{name}, exchanged", answers(starting)
    starting = start_segments(BareModel(path, THREADS))
    starting.table.work("all")
    assert starting.moved_to(PreparedModel(prepared, path, THREADS), lambda: True)
    yield "moved to prepared", answers(starting)


def assert_alike(path: Path, case: Quantised) -> None:
    expected = [output for inputs in case.inputs for output in whole(path, inputs).values()]
    for stage, answers in stages(path, case.inputs):
        assert len(answers) == len(expected) == len(case.inputs), "one output each"
        for wanted, found in zip(expected, answers, strict=True):
            close = 1e-4 * np.abs(wanted).max()
            np.testing.assert_allclose(found, wanted, 1e-3, close, err_msg=stage)


@pytest.mark.parametrize("name", CASES)
def test_quantised_networks_answer_alike_at_every_stage(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    assert_alike(written(case, tmp_path), case)


@pytest.mark.usefixtures("short_segments")
def test_in_several_segments_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MOST_LOSS", 9)
    case = chain_on_integers()
    path = written(case, tmp_path)
    assert len(BareModel(path, THREADS).segments) > 1
    assert_alike(path, case)


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("depth", [1, 2])
def test_in_several_segments_where_functions_quantise(
    depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "MOST_LOSS", 9)
    case = chain_on_integers()
    called_quantisers(case.model, depth)
    path = written(case, tmp_path)
    made = {name for node in case.model.graph.node if node.domain for name in node.output}
    for segment in BareModel(path, THREADS, longest_ns=0).segments:
        assert made.isdisjoint(segment.spec.inputs)
    assert_alike(path, case)


def test_the_first_session_of_large_quantised_weights_is_the_warm_one(tmp_path: Path) -> None:
    case = product_of("MatMul", TensorProto.INT8, 3400, 3400, 0, offset=False)
    path = written(case, tmp_path)
    source = BareModel(path, THREADS, is_awaited=True)
    (expected,) = whole(path, case.inputs[0]).values()
    (found,) = run_serially(start_segments(source).program, case.inputs[0]).values()
    np.testing.assert_array_equal(found, expected)
    assert source.open_warm(0) is None


def test_where_a_worker_has_died_of_it_the_graph_is_kept(tmp_path: Path) -> None:
    path = written(layers_of_four_bits(), tmp_path)
    source = BareModel(path, THREADS, is_awaited=True, keeps_graph=True)
    source.check()
    source.open(0)
    assert source.open_warm(0) is not None


@pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.INT4])
def test_quantised_weights_that_the_model_lists_as_inputs_are_not_fused(
    kind: int, tmp_path: Path
) -> None:
    """ONNX Runtime's own session does not either, whether requests can give them or not."""
    case = product_of("MatMul", kind, 64, 32, 0, offset=False)
    for tensor in case.model.graph.initializer:
        shape = list(tensor.dims)
        given = helper.make_tensor_value_info(tensor.name, tensor.data_type, shape)
        case.model.graph.input.append(given)
    assert_alike(written(case, tmp_path), case)


def test_the_own_format_starts_with_packed_weights_where_answers_depend_on_that(
    tmp_path: Path,
) -> None:
    case = CASES["MatMulNBits-4-4"]()
    library = onnxruntime()
    options = library.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    path = written(case, tmp_path)
    library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for inputs in case.inputs:
        (expected,) = whole(tmp_path / "model.ort", inputs).values()
        source = BareModel(tmp_path / "model.ort", THREADS, is_awaited=True)
        (found,) = run_serially(start_segments(source).program, inputs).values()
        np.testing.assert_allclose(found, expected, 1e-3, 1e-4 * np.abs(expected).max())


# What Brisk's own cuts do not do is done here, to see that preparation notices.


@pytest.mark.usefixtures("short_segments")
def test_a_cut_that_changes_answers_is_refused_and_the_model_prepared_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "MOST_LOSS", 9)
    monkeypatch.setattr(cutting, "_QUANTISES", "")
    monkeypatch.setattr(cutting, "_SCALES_BACK", "")
    case = chain_on_integers(stages=5)
    path = written(case, tmp_path)
    bare = BareModel(path, THREADS)
    assert len(bare.segments) > 1
    model = WholeModel(path, THREADS)
    differing = [
        differing_output(model, inputs, run_serially(start_segments(bare).program, inputs))
        for inputs in case.inputs
    ]
    assert any(differing)
    made = prepare(path, THREADS)
    assert len(made.plan.segments) == 1
    prepared = PreparedModel(made.path, path, THREADS)
    for inputs in case.inputs:
        (expected,) = whole(path, inputs).values()
        (found,) = run_serially(start_segments(prepared).program, inputs).values()
        np.testing.assert_allclose(found, expected, 1e-3, 1e-4 * np.abs(expected).max())


def test_a_cut_that_learned_caches_want_is_refused_where_it_changes_answers(
    tmp_path: Path,
) -> None:
    case = chain_on_integers()
    scaled_back = [
        node.output[0]
        for node in case.model.graph.node
        if node.op_type == "DequantizeLinear" and not node.input[0].startswith("w")
    ]
    path = written(case, tmp_path)
    with pytest.raises(InvalidModelError, match=r"in \d+ segments, output '.*' is not what ONNX"):
        prepare(path, THREADS, taps=scaled_back)
    assert not list((tmp_path / "cache").rglob("*.segments"))


def test_a_network_that_magnifies_last_digits_is_alike_within_what_it_magnifies(
    tmp_path: Path,
) -> None:
    graph = QuantisedGraph()
    value = "x"
    for factor in (1e4, 1e4):  # the sine of large numbers
        value = graph.add("Sin", graph.add("Mul", value, graph.keep(np.float32(factor))))
    path = written(Quantised(graph.model(("n", 8), value, 2), ()), tmp_path)
    inputs = {"x": graph.rows(3, 8)}
    model = WholeModel(path, THREADS)
    ((name, expected),) = model.answer(inputs).items()
    (moved,) = model.answer({"x": inputs["x"] * np.float32(1 + 2**-23)}).values()
    assert not are_alike(expected, moved)
    assert differing_output(model, inputs, {name: moved}) is None
    assert differing_output(model, inputs, {name: expected + 1e4}) == name


@pytest.mark.parametrize(
    ("expected", "found", "alike"),
    [
        (np.array([1.0, 1e-6]), np.array([1.0005, 9e-5]), True),
        (np.array([1.0, 1e-6]), np.array([1.0, 3e-3]), False),
        (np.array([1.0, np.nan, np.inf]), np.array([1.0, np.nan, np.inf]), True),
        (np.array([1.0, 2.0]), np.array([1.0, np.nan]), False),
        (np.array([1.0]), np.array([[1.0]]), False),
        (np.array([3]), np.array([4]), False),
        (np.array(["a"], object), np.array(["a"], object), True),
        (np.array(["a"], object), np.array(["b"], object), False),
        (np.zeros(0), np.zeros(0), True),
    ],
)
def test_answers_are_alike_by_value_and_by_the_largest(
    expected: np.ndarray, found: np.ndarray, alike: bool
) -> None:
    assert are_alike(expected, found) is alike


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.UINT8])
def test_types_that_numpy_lacks_are_compared_too(kind: int, tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, kind, ["n", 4]) for name in "xy"]
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[0, 1])
    graph = helper.make_graph([node], "types", values[:1], values[1:])
    path = tmp_path / "model.onnx"
    sets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=9), path)
    (kept,) = PreparedModel(prepare(path, THREADS).path, path, THREADS).kept
    assert kept.gain is not None
    model = WholeModel(path, THREADS)
    ones = np.ones((1, 4), helper.tensor_dtype_to_np_dtype(kind))
    assert differing_output(model, {"x": ones}, {"y": ones}) is None
    assert differing_output(model, {"x": ones}, {"y": ones + ones}) == "y"


def test_a_damaged_segment_is_not_read_anew_from_replaced_data(tmp_path: Path) -> None:
    path = chain(tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin")
    prepared = prepare(path, THREADS).path
    told: list[Exception] = []
    mended = MendedModel(prepared, OwnFile(path, THREADS, (), SessionTuning()), told.append)
    data = tmp_path / "weights.bin"
    replaced = tmp_path / "draft"
    replaced.write_bytes(data.read_bytes()[::-1])
    replaced.rename(data)
    with pytest.raises(InvalidModelError, match="not what it was prepared from"):
        mended._mend(ArtefactError("damaged"))
