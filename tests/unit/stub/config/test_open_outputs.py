"""What a file leaves open of its outputs is asked of shape inference, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper

from brisk.errors import InvalidModelError
from brisk.pipelines import TensorType
from brisk.stub.config import signature as signature_module
from brisk.stub.config.completion import DEFAULT_MAX_BATCH_SIZE, complete
from brisk.stub.config.signature import model_signature, stated_signature
from support.server.entries import make_model

Sizes = Sequence["int | str | None"] | None


def saved(
    directory: Path,
    node: NodeProto,
    given: Sizes,
    made: Sizes,
    *weights: tuple[str, int | list[int]],
) -> Path:
    """A model of ``node``, from ``x`` to ``y``, float32; ``made`` None: ``y`` has no type."""
    x, y = (("x", TensorProto.FLOAT, given), ("y", TensorProto.FLOAT, made))
    arrays = [(name, np.array(value, np.int64)) for name, value in weights]
    model = make_model([node], [x], [y], arrays)
    if made is None:
        model.graph.output[0].ClearField("type")
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    path = directory / "model.onnx"
    onnx.save(model, path)
    return path


def mean(axis: int, *, keepdims: int = 1) -> tuple[NodeProto, tuple[str, list[int]]]:
    node = helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=keepdims)
    return node, ("axes", [axis])


TURN = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
RELU = helper.make_node("Relu", ["x"], ["y"])
CAST = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT64)
ROWS = helper.make_node("Reshape", ["x", "shape"], ["y"])
CONTRIBUTED = helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft")


def test_an_output_without_a_type_is_inferred(tmp_path: Path) -> None:
    path = saved(tmp_path, CAST, ["b", 3], None)
    assert stated_signature(path).outputs == {"y": TensorType(None, None)}
    signature = model_signature(path)
    assert signature.outputs == {"y": TensorType("int64", (None, 3))}
    completion = complete(signature, {})
    assert completion.max_batch_size == DEFAULT_MAX_BATCH_SIZE
    assert completion.outputs == ({"name": "y", "data_type": "TYPE_INT64", "dims": [3]},)


def test_an_output_without_a_shape_is_inferred(tmp_path: Path) -> None:
    path = saved(tmp_path, RELU, ["b", 3], ["b", 3])
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    assert model_signature(path).outputs == {"y": TensorType("float32", (None, 3))}


@pytest.mark.parametrize(("keepdims", "shape"), [(1, (1, 3)), (0, (3,))])
def test_a_mean_over_the_batch_is_not_batched_whatever_the_file_calls_its_size(
    tmp_path: Path, keepdims: int, shape: tuple[int, ...]
) -> None:
    node, axes = mean(0, keepdims=keepdims)
    signature = model_signature(saved(tmp_path, node, ["b", 3], ["o", 3], axes))
    assert signature.outputs["y"].shape == shape
    assert complete(signature, {}).max_batch_size == 0


@pytest.mark.parametrize("declared", [["n", "b"], ["o", "p"], [None, None]])
def test_a_transposed_output_is_not_batched(tmp_path: Path, declared: Sizes) -> None:
    signature = model_signature(saved(tmp_path, TURN, ["b", "n"], declared))
    assert signature.origins == {"y": ("input", "batch")}
    assert complete(signature, {}).max_batch_size == 0


def test_an_output_behind_a_sequence_that_the_file_declares_is_inferred(tmp_path: Path) -> None:
    path = saved(tmp_path, TURN, ["b", "n"], ["o", "p"], ("place", 0))
    model = onnx.load(path)
    model.graph.node[0].output[0] = "turned"
    model.graph.node.add(op_type="SequenceConstruct", input=["turned"], output=["all"])
    model.graph.node.add(op_type="SequenceAt", input=["all", "place"], output=["y"])
    declared = helper.make_tensor_sequence_value_info("all", TensorProto.FLOAT, ["o", "p"])
    model.graph.value_info.append(declared)
    onnx.save(model, path)
    signature = model_signature(path)
    assert signature.origins == {"y": ("input", "batch")}
    assert complete(signature, {}).max_batch_size == 0


PLACES = helper.make_node("NonZero", ["x"], ["places"])
FOUND = helper.make_node("Transpose", ["places"], ["y"], perm=[1, 0])
KEPT = helper.make_node("NonMaxSuppression", ["x", "scores"], ["y"])


def test_an_output_of_as_many_rows_as_were_found_is_not_batched(tmp_path: Path) -> None:
    for nodes, given in (([PLACES, FOUND], ["b", 3]), ([KEPT], ["b", "n", 4])):
        path = saved(tmp_path, nodes[0], given, ["found", len(given)])
        model = onnx.load(path)
        model.graph.node.extend(nodes[1:])
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
        if nodes == [KEPT]:
            scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["b", 2, "n"])
            model.graph.input.append(scores)
        onnx.save(model, path)
        signature = model_signature(path)
        assert signature.origins["y"][0] == "input"
        assert complete(signature, {}).max_batch_size == 0


@pytest.mark.parametrize("declared", [["o", 3], [None, None], ["unk__7", "unk__8"]])
@pytest.mark.parametrize("given", ["b", None])
def test_an_output_of_another_name_is_batched_where_it_is_the_batch(
    tmp_path: Path, declared: Sizes, given: str | None
) -> None:
    signature = model_signature(saved(tmp_path, RELU, [given, 3], declared))
    assert complete(signature, {}).max_batch_size == DEFAULT_MAX_BATCH_SIZE
    assert signature.outputs["y"].shape == (None, 3)


def test_an_output_of_which_inference_knows_nothing_is_batched(tmp_path: Path) -> None:
    path = saved(tmp_path, ROWS, ["b", "n", 4], ["o", 4], ("shape", [-1, 4]))
    assert complete(model_signature(path), {}).max_batch_size == DEFAULT_MAX_BATCH_SIZE
    path = saved(tmp_path, CONTRIBUTED, ["b", 3], ["o", 3])
    assert complete(model_signature(path), {}).max_batch_size == DEFAULT_MAX_BATCH_SIZE


def test_what_cannot_be_inferred_stays_as_the_file_says(tmp_path: Path) -> None:
    unknown = helper.make_node("Frobnicate", ["x"], ["y"])
    assert model_signature(saved(tmp_path, unknown, ["b", 3], None)).outputs == {
        "y": TensorType(None, None)
    }


def test_inference_is_not_asked_where_names_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(signature_module, "infer_outputs", refuse)
    for given, made in ((["b", 3], ["b", 3]), ([1, 3], ["o", 3]), (["b", 3], [1, 3])):
        model_signature(saved(tmp_path, RELU, given, made))
    with pytest.raises(AssertionError, match="asked"):
        model_signature(saved(tmp_path, RELU, ["b", 3], ["o", 3]))


def test_a_changed_file_is_inferred_anew(tmp_path: Path) -> None:
    node, axes = mean(0)
    first = model_signature(saved(tmp_path, RELU, ["b", 3], ["o", 3]))
    second = model_signature(saved(tmp_path, node, ["b", 3], ["o", 3], axes))
    assert first.outputs["y"].shape == (None, 3)
    assert second.outputs["y"].shape == (1, 3)


def test_an_inferred_type_that_triton_has_not_is_named(tmp_path: Path) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)
    path = saved(tmp_path, node, ["b", 3], None)
    model = onnx.load(path)
    model.opset_import[0].version = 19
    onnx.save(model, path)
    with pytest.raises(InvalidModelError, match=r"'y' is of type float8.*unknown to Triton"):
        model_signature(path)
