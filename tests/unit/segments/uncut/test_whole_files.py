"""What cannot be cut is served in one session of the unchanged file, if ONNX Runtime takes that;
and models as old exporters wrote them need that not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from brisk.errors import InvalidModelError
from brisk.segments.model import cutting, sources
from brisk.segments.model.sources import checked_model
from support.models.segment_models import by_segments, chain, whole

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
ROWS = np.random.default_rng(3).standard_normal((2, 512)).astype(np.float32)
SEEDS = 200
KINDS = ("Relu", "Add", "MatMul", "Dropout", "Norm", "Reshape", "Gemm", "Sum")


def fails(*_: object, **__: object) -> Any:
    raise KeyError("a value that nobody makes")


@pytest.mark.parametrize("name", ["normalise", "cut_points", "extract"])
def test_a_model_that_cannot_be_cut_is_served_whole_and_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = chain(tmp_path / "model.onnx")
    expected = whole(path, {"x": ROWS})["y"]
    monkeypatch.setattr(sources, name, fails_once(getattr(sources, name)))
    model = checked_model(path, 1)
    assert "one session of the unchanged file" in model.remark
    assert "a value that nobody makes" in model.remark
    assert len(model.segments) == 1
    assert not model.wants_artefact
    np.testing.assert_array_equal(by_segments(model, {"x": ROWS})["y"], expected)


def fails_once(function: Any) -> Any:
    """A second call does what is asked: that for the unchanged file."""
    calls = iter((fails, function))
    return lambda *given, **named: next(calls)(*given, **named)


def test_a_segment_that_onnx_runtime_refuses_leads_to_the_unchanged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = chain(tmp_path / "model.onnx")
    expected = whole(path, {"x": ROWS})["y"]

    def misspelt(*given: Any, **named: Any) -> Any:
        segments = extract(*given, **named)
        for node in segments[-1].proto.graph.node:
            node.op_type = "Tahn"
        return segments

    extract = sources.extract
    monkeypatch.setattr(sources, "extract", misspelt)
    monkeypatch.setattr(cutting, "LONGEST_SEGMENT_NS", 15_000)
    model = checked_model(path, 2)
    assert "Tahn" in model.remark
    np.testing.assert_array_equal(by_segments(model, {"x": ROWS})["y"], expected)


def test_what_onnx_runtime_refuses_whole_is_refused_for_its_first_reason(tmp_path: Path) -> None:
    path = chain(tmp_path / "model.onnx")
    model = onnx.load(path)
    model.graph.node[1].op_type = "Tahn"
    onnx.save(model, path)
    with pytest.raises(InvalidModelError, match=r"to blame: .* operator Tahn of"):
        checked_model(path, 1)


def test_onnx_runtime_opens_no_other_file_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes the model could have it read any."""
    path = chain(tmp_path / "model.onnx", layers=2)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w", size_threshold=0)
    monkeypatch.setattr(sources, "normalise", fails_once(sources.normalise))
    with pytest.raises(KeyError, match="a value that nobody makes"):
        checked_model(path, 1)


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_the_light_models_of_the_onnx_package_are_cut_as_others(path: Path) -> None:
    """Of 2018 and before, IR version 3; their weights are made by nodes."""
    model = checked_model(path, 2)
    assert not model.remark


def old_model(seed: int) -> ModelProto:
    """A small network as exporters wrote them in 2018: IR version 3, initialisers that are inputs,
    some that nobody reads, nodes without names, an operator set that is random, too."""
    random = np.random.default_rng(seed)
    opset = int(random.choice([7, 8, 9]))
    nodes, values, previous, width = [], {}, "x", 6

    def weight(*shape: int) -> str:
        name = f"w{len(values)}"
        values[name] = random.standard_normal(shape).astype(np.float32)
        return name

    for position in range(int(random.integers(1, 7))):
        made = f"v{position}"
        kind = random.choice(KINDS)
        if kind == "MatMul":
            nodes.append(helper.make_node(kind, [previous, weight(width, width)], [made]))
        elif kind == "Gemm":
            given = [previous, weight(width, width), weight(width)]
            nodes.append(helper.make_node(kind, given, [made], transB=int(random.integers(2))))
        elif kind == "Norm":
            given = [previous, *(weight(width) for _ in range(3))]
            variance = f"w{len(values)}"
            values[variance] = random.random(width).astype(np.float32) + 0.5
            nodes.append(helper.make_node("BatchNormalization", [*given, variance], [made]))
        elif kind == "Reshape":
            shape = f"w{len(values)}"
            values[shape] = np.array([-1, width], np.int64)
            nodes.append(helper.make_node(kind, [previous, shape], [made]))
        elif kind in ("Add", "Sum"):
            given = [previous, weight(width) if kind == "Add" else previous]
            nodes.append(helper.make_node(kind, given, [made]))
        else:
            nodes.append(helper.make_node(kind, [previous], [made]))
        previous = made
    for _ in range(int(random.integers(3))):
        weight(int(random.integers(1, 4)))  # which nobody reads
    nodes.append(helper.make_node("Softmax", [previous], ["y"]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])]
    for name, value in values.items():
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        inputs.append(helper.make_tensor_value_info(name, kind, value.shape))
    if random.integers(2):
        random.shuffle(inputs)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])
    weights = [numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "old", inputs, [output], weights)
    return helper.make_model(graph, ir_version=3, opset_imports=[helper.make_opsetid("", opset)])


@pytest.mark.parametrize("cuts", ["as ever", "everywhere"])
def test_old_models_answer_as_onnx_runtime_does(
    cuts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cuts == "everywhere":
        monkeypatch.setattr(cutting, "LONGEST_SEGMENT_NS", 0)
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    counts = set()
    for seed in range(SEEDS):
        path = tmp_path / f"{seed}.onnx"
        onnx.save(old_model(seed), path)
        (expected,) = onnxruntime.InferenceSession(path, options).run(None, feeds)
        model = checked_model(path, 1)
        assert not model.remark, seed
        assert [variable.name for variable in model.plan.inputs] == ["x"], seed
        counts.add(len(model.segments))
        found = by_segments(model, feeds)["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6, err_msg=str(seed))
    assert (max(counts) > 3) == (cuts == "everywhere")
