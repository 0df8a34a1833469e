"""What segments say of types: enough for ONNX Runtime's fusions, never more than is sure."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from brisk.segments.model import cutting
from brisk.segments.model.cutting import NodeSpan, cut_points
from brisk.segments.model.extraction import Segment, extract
from brisk.segments.model.model_file import read_model_file
from brisk.segments.model.node_times import UNKNOWN_SIZE, predicted_times_ns
from brisk.segments.onnxruntime import onnxruntime
from support.models.segment_models import by_segments, info, save, source_of, whole

CHANNELS, SIDE = 32, 16
IMAGES = np.random.default_rng(5).standard_normal((2, CHANNELS, SIDE, SIDE)).astype("f4")


def _weights(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    shape = (CHANNELS, CHANNELS, 3, 3)
    return {f"w{i}": (rng.standard_normal(shape) / 17).astype("f4") for i in range(count)}


def _convolution(source: str, number: int, **attributes: object) -> onnx.NodeProto:
    attributes = {"pads": [1, 1, 1, 1], **attributes}
    return helper.make_node("Conv", [source, f"w{number}"], [f"c{number}"], **attributes)


def _residual(path: Path, blocks: int = 4, batch: int | str = "n", **options: object) -> Path:
    """Blocks of two convolutions and a sum; every second one begins with two convolutions of the
    same image, as where a network goes to another resolution.
    """
    nodes, previous, number = [], "x", 0
    for block in range(blocks):
        nodes.append(_convolution(previous, number))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{block}"]))
        nodes.append(_convolution(f"r{block}", number + 1))
        shortcut, number = previous, number + 2
        if block % 2 == 0:
            nodes.append(_convolution(previous, number))
            shortcut, number = f"c{number}", number + 1
        nodes.append(
            helper.make_node(
                "Add", [nodes[-1 - (block % 2 == 0)].output[0], shortcut], [f"s{block}"]
            )
        )
        previous = f"y{block}" if block < blocks - 1 else "y"
        nodes.append(helper.make_node("Relu", [f"s{block}"], [previous]))
    shape = (batch, CHANNELS, SIDE, SIDE)
    return save(path, nodes, [info("x", *shape)], [info("y", *shape)], _weights(number), **options)


def _segments(path: Path, *ends: int) -> list[Segment]:
    model = onnx.load(path)
    places = [0, *ends, len(model.graph.node)]
    spans = [NodeSpan(*each, 0.0) for each in pairwise(places)]
    return extract(model, spans, onnx.shape_inference.infer_shapes(model))


def _end_of(path: Path, value: str) -> int:
    nodes = onnx.load(path).graph.node
    return 1 + next(place for place, node in enumerate(nodes) if value in node.output)


def _dims(segment: Segment) -> list[int | str]:
    (border,) = segment.proto.graph.input
    if not border.type.tensor_type.HasField("shape"):
        return ["no shape"]
    return [dim.dim_param or dim.dim_value for dim in border.type.tensor_type.shape.dim]


def _optimised(proto: ModelProto, folder: Path) -> Counter[str]:
    """ONNX Runtime's nodes of a model by operator."""
    library = onnxruntime()
    options = library.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    library.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    graph = onnx.load(folder / "optimised.onnx").graph
    return Counter(node.op_type for node in graph.node)


def test_a_model_of_one_segment_is_what_the_file_says(tmp_path: Path) -> None:
    path = _residual(tmp_path / "model.onnx")
    (segment,) = source_of(path).segments
    assert segment.proto.graph.value_info == []
    assert [each.op_type for each in segment.proto.graph.node] == [
        each.op_type for each in onnx.load(path).graph.node
    ]


def test_images_are_fused_in_segments_as_in_the_whole(tmp_path: Path) -> None:
    path = _residual(tmp_path / "model.onnx")
    parts = _segments(path, _end_of(path, "y1"))
    found: Counter[str] = sum((_optimised(part.proto, tmp_path) for part in parts), Counter())
    expected = _optimised(onnx.load(path), tmp_path)
    more = found - expected
    assert set(more) <= {"ReorderOutput", "ReorderInput"}
    assert more["ReorderOutput"] <= 1
    assert more["ReorderInput"] <= 2
    assert not expected - found
    assert not any(part.proto.graph.value_info for part in parts)


def test_answers_of_segments_have_the_bits_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _residual(tmp_path / "model.onnx", blocks=6)
    monkeypatch.setattr(cutting, "SMALL_MODEL_NODES", 0)
    monkeypatch.setattr(cutting, "CALL_NS", 0)
    monkeypatch.setattr(cutting, "MOST_LOSS", 1.0)
    monkeypatch.setattr(cutting, "LONGEST_SEGMENT_NS", 300_000)
    source = source_of(path)
    assert len(source.segments) > 1
    answers = by_segments(source, {"x": IMAGES}, warm=True)
    np.testing.assert_array_equal(answers["y"], whole(path, {"x": IMAGES})["y"])


def test_a_cut_stands_where_convolutions_alone_read_the_image(tmp_path: Path) -> None:
    """Elsewhere sums behind it would leave the blocked layout."""
    path = _residual(tmp_path / "model.onnx", blocks=6)
    model = onnx.load(path)
    total = sum(predicted_times_ns(onnx.shape_inference.infer_shapes(model)))
    spans, _ = cut_points(model, 1 << 30, longest_ns=total * 0.9)
    made = {model.graph.node[span.start - 1].output[0] for span in spans[1:]}
    assert made <= {"y1", "y3"}


@pytest.mark.parametrize("batch", ["n", 2])
def test_a_border_has_sizes_but_no_number_of_rows(tmp_path: Path, batch: int | str) -> None:
    path = _residual(tmp_path / "model.onnx", batch=batch)
    _, second = _segments(path, _end_of(path, "y1"))
    rows, *sizes = _dims(second)
    assert isinstance(rows, str)
    assert sizes == [CHANNELS, SIDE, SIDE]


def test_behind_a_pool_that_rounds_up_sizes_are_open(tmp_path: Path) -> None:
    nodes = [
        helper.make_node(
            "MaxPool", ["x"], ["p"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1
        ),
        _convolution("p", 0),
        _convolution("c0", 1),
        helper.make_node("Identity", ["c1"], ["y"]),
    ]
    shape = ("n", CHANNELS, SIDE, SIDE)
    output = info("y", "n", CHANNELS, "h", "w")
    path = save(tmp_path / "model.onnx", nodes, [info("x", *shape)], [output], _weights(2))
    _, second = _segments(path, 2)
    assert _dims(second) == [0, 0, 0, 0]


def test_a_body_says_nothing_sure(tmp_path: Path) -> None:
    def body(operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["x"], [f"{operator}_out"])
        return helper.make_graph([node], operator, [], [info(f"{operator}_out", "n", 7)])

    nodes = [
        helper.make_node("If", ["flag"], ["a"], then_branch=body("Neg"), else_branch=body("Abs")),
        helper.make_node("Sqrt", ["a"], ["b"]),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    path = save(
        tmp_path / "model.onnx", nodes, [info("x", "n", 4)], [info("y", "n", 4)],
        {"flag": np.array(True)},
    )  # fmt: skip
    _, second = _segments(path, 2)
    assert _dims(second) == ["no shape"]


def test_wrong_words_of_the_file_on_sizes_reach_no_border(tmp_path: Path) -> None:
    """ONNX Runtime warns of them within a model, and computes."""
    nodes = [_convolution("x", 0), _convolution("c0", 1), helper.make_node("Neg", ["c1"], ["y"])]
    shape = ("n", CHANNELS, SIDE, SIDE)
    path = save(
        tmp_path / "model.onnx", nodes, [info("x", *shape)],
        [info("y", *shape), info("c0", "n", CHANNELS, 3, 3)], _weights(2),
    )  # fmt: skip
    model = onnx.load(path)
    model.graph.value_info.append(info("c1", "n", CHANNELS, SIDE, 99))
    onnx.save(model, path)
    expected = whole(path, {"x": IMAGES})
    parts = _segments(path, 1, 2)
    assert [_dims(part)[1:] for part in parts[1:]] == [[CHANNELS, SIDE, SIDE]] * 2
    library = onnxruntime()
    values = {"x": IMAGES}
    for part in parts:
        options = library.SessionOptions()
        options.log_severity_level = 4
        session = library.InferenceSession(
            part.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        spec = part.spec
        made = session.run(list(spec.outputs), {name: values[name] for name in spec.inputs})
        values.update(zip(spec.outputs, made, strict=True))
    np.testing.assert_array_equal(values["y"], expected["y"])


def test_open_images_are_predicted_by_what_strides_leave(tmp_path: Path) -> None:
    def times(*sizes: int | str) -> float:
        nodes = [_convolution("x", 0, strides=[8, 8]), _convolution("c0", 1)]
        path = save(
            tmp_path / "model.onnx", nodes, [info("x", 1, CHANNELS, *sizes)],
            [info("c1", 1, CHANNELS, "a", "b")], _weights(2),
        )  # fmt: skip
        return sum(predicted_times_ns(onnx.shape_inference.infer_shapes(onnx.load(path))))

    assert times("h", "w") == times(UNKNOWN_SIZE, UNKNOWN_SIZE)


def test_sequences_cross_with_their_type(tmp_path: Path) -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ("n", 4))
    output = helper.make_value_info("y", helper.make_sequence_type_proto(tensor))
    nodes = [
        helper.make_node("SequenceConstruct", ["x"], ["s"]),
        helper.make_node("Neg", ["x"], ["b"]),
        helper.make_node("SequenceInsert", ["s", "b"], ["y"]),
    ]
    path = save(tmp_path / "model.onnx", nodes, [info("x", "n", 4)], [output])
    _, second = _segments(path, 2)
    assert {each.type.WhichOneof("value") for each in second.proto.graph.input} == {
        "tensor_type",
        "sequence_type",
    }
    assert read_model_file(path).proto.graph.output[0].type.HasField("sequence_type")


def test_what_follows_from_weights_alone_crosses_no_border(tmp_path: Path) -> None:
    """ONNX Runtime computes it once, in the session of whoever reads it."""
    nodes = [
        helper.make_node("Neg", ["weight"], ["made"]),
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "made"], ["b"]),
        helper.make_node("MatMul", ["b", "weight"], ["y"]),
    ]
    weights = {"weight": np.eye(4, dtype=np.float32)}
    path = save(tmp_path / "model.onnx", nodes, [info("x", "n", 4)], [info("y", "n", 4)], weights)
    spans, _ = cut_points(onnx.load(path), 1 << 30, longest_ns=0)
    assert [(span.start, span.stop) for span in spans] == [(0, 3), (3, 4)]


@pytest.mark.parametrize(("kind", "ends"), [(TensorProto.INT8, [2, 3]), (TensorProto.INT4, [3])])
def test_what_has_several_elements_in_a_byte_crosses_no_border(kind: int, ends: list[int]) -> None:
    """No array shows it, so no form could be compared, nor some rows go on alone."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    constants = [
        helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5]),
        helper.make_tensor("zero", kind, [], [0]),
    ]
    graph = helper.make_graph(nodes, "q", [info("x", "n", 4)], [info("y", "n", 4)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    spans, _ = cut_points(model, 1 << 30, longest_ns=0)
    assert [span.stop for span in spans] == ends


def test_rows_of_two_numbers_are_not_said_to_be_equal(tmp_path: Path) -> None:
    """ONNX Runtime would leave out the broadcast."""
    shape = (CHANNELS, SIDE, SIDE)
    nodes = [
        helper.make_node("Relu", ["one"], ["a"]),
        helper.make_node("Relu", ["two"], ["b"]),
        helper.make_node("Relu", ["x"], ["c"]),
        helper.make_node("Sum", ["a", "b", "c"], ["y"]),
    ]
    inputs = [info("one", 1, *shape), info("two", 2, *shape), info("x", "n", *shape)]
    path = save(tmp_path / "model.onnx", nodes, inputs, [info("y", "m", *shape)])
    _, second = _segments(path, 3)
    rows = [each.type.tensor_type.shape.dim[0] for each in second.proto.graph.input]
    assert len({each.dim_param for each in rows}) == 3
    assert all(each.dim_param for each in rows)
