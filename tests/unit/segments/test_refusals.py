"""What ONNX Runtime does not take is refused by name: model, segment, node, operator, its set."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from brisk.errors import InvalidModelError
from brisk.segments.model import cutting
from brisk.segments.model.sources import BareModel
from brisk.segments.prepared.preparation import prepare
from support.models.segment_models import by_segments, info, save, source_of, whole

node = helper.make_node
FIRST = node("Neg", ["x"], ["a"], name="first")


def refusal(path: Path) -> str:
    with pytest.raises(InvalidModelError) as caught:
        BareModel(path, 1).check()
    return str(caught.value)


@pytest.mark.parametrize(
    ("odd", "domain", "reason"),
    [
        (node("Nonesuch", ["a"], ["y"], name="odd"), "ai.onnx", "No Op registered"),
        (
            node("Nonesuch", ["a"], ["y"], name="odd", domain="far.away"),
            "far.away",
            "No opset import",
        ),
        (node("Abs", ["a"], ["y"], name="odd", colour=1), "ai.onnx", "Unrecognized attribute"),
        (
            node("Softmax", ["a"], ["y"], name="odd", axis="last"),
            "ai.onnx",
            "Mismatched attribute type",
        ),
        (
            node("Transpose", ["a"], ["y"], name="odd", perm=[4, 5]),
            "ai.onnx",
            "Invalid attribute perm",
        ),
        (node("MatMul", ["a", "whole"], ["y"], name="odd"), "ai.onnx", "bound to different types"),
        (node("Add", ["a", "absent"], ["y"], name="odd"), "ai.onnx", "'absent' is not"),
        (node("Add", ["a"], ["y"], name="odd"), "ai.onnx", "input size 1 not in range"),
        (node("Abs", ["x"], ["a"], name="odd"), "ai.onnx", "Duplicate definition"),
    ],
    ids=[
        *("operator", "domain", "attribute", "attribute-type", "attribute-value", "types"),
        *("missing-initialiser", "inputs", "duplicate-name"),
    ],
)
def test_a_node_to_blame_is_named(
    tmp_path: Path, odd: NodeProto, domain: str, reason: str
) -> None:
    last = node("Identity", ["y" if "y" in odd.output else "a"], ["z"], name="last")
    path = save(
        tmp_path / "model.onnx",
        [FIRST, odd, last],
        [info("x", "n", 2)],
        [info("z", "n", 2)],
        {"whole": np.ones((2, 2), np.int64)},
    )
    text = refusal(path)
    version = 17 if domain == "ai.onnx" else "not imported"
    blame = f"node 'odd', operator {odd.op_type} of domain {domain}, operator set {version}: "
    assert f"{path}: " in text
    assert "segment 0 (3 nodes, first to last)" in text
    assert blame in text, text
    assert reason in text.partition(blame)[2]


def test_a_node_that_onnxruntime_does_not_name_is_found(tmp_path: Path) -> None:
    """An operator of a domain that is imported and unknown: its text names neither node."""
    nodes = [
        node("Abs", ["x"], ["a0"]),
        *(node("Abs", [f"a{i}"], [f"a{i + 1}"]) for i in range(20)),
        node("Odd", ["a20"], ["b"], domain="far.away"),
        node("Odd", ["b"], ["y"], domain="far.away"),
    ]
    path = save(
        tmp_path / "model.onnx",
        nodes,
        [info("x", "n", 2)],
        [info("y", "n", 2)],
        domains={"": 17, "far.away": 3},
    )
    text = refusal(path)
    assert "the node that makes 'b', operator Odd of domain far.away, operator set 3: " in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"domains": {"": 99}}, "operator sets ai.onnx 99"),
        ({"ir": 99}, "IR version 99"),
    ],
    ids=["operator-set", "ir-version"],
)
def test_versions_that_are_too_new_are_named(
    tmp_path: Path, options: dict[str, object], words: str
) -> None:
    path = save(tmp_path / "model.onnx", [FIRST], [info("x", "n")], [info("a", "n")], **options)
    text = refusal(path)
    assert f"{path}: ONNX Runtime" in text
    assert "segment 0 (1 node, first)" in text
    assert words in text
    assert ".cc:" not in text, "where ONNX Runtime's own sources say so"


def test_a_graph_with_a_cycle_is_refused(tmp_path: Path) -> None:
    nodes = [node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"]), node("Abs", ["b"], ["y"])]
    path = save(tmp_path / "model.onnx", nodes, [info("x", "n")], [info("y", "n")])
    text = refusal(path)
    assert "not acyclic" in text
    assert "segment 0 (3 nodes, a to y)" in text


def test_long_and_unprintable_names_are_bounded(tmp_path: Path) -> None:
    odd = node("Nonesuch", ["x"], ["y"], name="\n" + "n" * 100_000)
    path = save(tmp_path / "model.onnx", [odd], [info("x", "n")], [info("y", "n")])
    text = refusal(path)
    assert len(text) < 3000
    assert text.isprintable()


def test_a_name_like_many_source_locations_takes_no_time(tmp_path: Path) -> None:
    """Each slash may be the first of one; they are looked for while no other thread runs."""
    for name in ("/" * 50_000, "/onnxruntime/:1 " * 5_000, "/onnxruntime" * 5_000 + "/:1 "):
        odd = node("Nonesuch", ["x"], ["y"], name=name)
        path = save(tmp_path / "model.onnx", [odd], [info("x", "n")], [info("y", "n")])
        started_s = time.process_time()
        assert "operator Nonesuch of domain ai.onnx" in refusal(path)
        assert time.process_time() - started_s < 5


def test_external_data_of_a_node_or_body_is_read_inside_the_folder_alone(tmp_path: Path) -> None:
    """ONNX Runtime itself opens no file: neither what a node's tensor names."""
    (tmp_path / "entry").mkdir()
    path = tmp_path / "entry" / "model.onnx"
    values = np.arange(4, dtype=np.float32)
    (tmp_path / "secret.bin").write_bytes(values.tobytes())
    (path.parent / "own.bin").write_bytes(values.tobytes())

    def write(location: str) -> None:
        tensor = numpy_helper.from_array(values, "t")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        body = helper.make_graph(
            [node("Identity", ["w"], ["v"])], "body", [], [info("v", 4)], [tensor]
        )
        tensor.name = body.initializer[0].name = "w"
        nodes = [
            node("Constant", [], ["c"], value=tensor),
            node("If", ["yes"], ["b"], then_branch=body, else_branch=body),
            node("Add", ["b", "c"], ["s"]),
            node("Add", ["s", "x"], ["y"]),
        ]
        save(path, nodes, [info("x", 4)], [info("y", 4)], {"yes": np.array(True)})

    write("own.bin")
    np.testing.assert_array_equal(by_segments(source_of(path), {"x": values})["y"], values * 3)
    for location in ("../secret.bin", "*/_ORT_MEM_ADDR_/*", "absent.bin"):
        write(location)
        assert str(path) in refusal(path)


def test_an_initialiser_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """ONNX Runtime takes the first or the last one, by where they lie."""
    path = save(
        tmp_path / "model.onnx",
        [node("Add", ["x", "w"], ["y"])],
        [info("x", 2)],
        [info("y", 2)],
        {"w": np.ones(2, np.float32)},
    )
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "w"))
    onnx.save(model, path)
    assert f"{path}: initialiser 'w' is given twice" in refusal(path)


def test_a_weight_that_is_said_to_lie_outside_is_read_there(tmp_path: Path) -> None:
    """Whatever raw data it holds beside that, as in ONNX Runtime."""
    inside, outside = np.full((2, 1024), 5, np.float32), np.full((2, 1024), 7, np.float32)
    path = save(
        tmp_path / "model.onnx",
        [node("Add", ["x", "w"], ["y"])],
        [info("x", 2, 1024)],
        [info("y", 2, 1024)],
        {"w": inside},
    )
    (tmp_path / "weights.bin").write_bytes(outside.tobytes())
    model = onnx.load(path)
    (tensor,) = model.graph.initializer
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    path.write_bytes(model.SerializeToString())
    given = {"x": 0 * inside}
    np.testing.assert_array_equal(whole(path, given)["y"], outside)
    np.testing.assert_array_equal(by_segments(source_of(path), given)["y"], outside)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    odd = node("Nonesuch", ["x"], ["y"], name="oddest")
    path = save(tmp_path / "model.onnx", [odd], [info("x", "n")], [info("y", "n")])
    for name in (b"oddest", b"Nonesuch"):
        changed = path.read_bytes().replace(name, b"\xf4" * len(name))
        (tmp_path / "changed.onnx").write_bytes(changed)
        assert str(tmp_path / "changed.onnx") in refusal(tmp_path / "changed.onnx")


def test_a_graph_in_two_parts_keeps_its_weights_apart(tmp_path: Path) -> None:
    """Protobuf merges fields that come twice; weights are told apart by their place."""
    one, two = np.full((2, 1024), 5, np.float32), np.full((2, 1024), 7, np.float32)
    path = save(
        tmp_path / "model.onnx",
        [node("Add", ["x", "w"], ["s"]), node("Mul", ["s", "v"], ["y"])],
        [info("x", 2, 1024)],
        [info("y", 2, 1024)],
        {"w": one},
    )
    more = onnx.ModelProto()
    more.graph.initializer.append(numpy_helper.from_array(two, "v"))
    path.write_bytes(path.read_bytes() + more.SerializeToString())
    given = {"x": np.ones((2, 1024), np.float32)}
    np.testing.assert_array_equal(by_segments(source_of(path), given)["y"], 42 + 0 * one)
    np.testing.assert_array_equal(whole(path, given)["y"], 42 + 0 * one)


def test_nodes_in_another_order_are_one_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime sorts them; names given twice are refused although each segment has one."""
    monkeypatch.setattr(cutting, "LONGEST_SEGMENT_NS", 0)
    shape = [info("x", "n", 2)], [info("y", "n", 2)]
    path = tmp_path / "model.onnx"
    save(path, [node("Abs", ["a"], ["y"]), node("Neg", ["x"], ["a"])], *shape)
    ones = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(by_segments(source_of(path), {"x": ones})["y"], ones)
    twice = [node("Neg", ["x"], ["a"]), node("MatMul", ["a", "e"], ["b"])]
    twice += [node("MatMul", ["b", "e"], ["a"]), node("MatMul", ["a", "e"], ["y"])]
    save(path, twice, *shape, {"e": np.eye(2, dtype=np.float32)})
    assert "Duplicate definition" in refusal(path)


@pytest.mark.parametrize(
    ("ir_version", "is_listed"), [(3, True), (4, True), (4, False), (8, True), (8, False)]
)
@pytest.mark.parametrize("large", [1, 4096])
def test_an_initialiser_that_nothing_reads_is_no_reason_to_refuse(
    tmp_path: Path, private_cache: None, ir_version: int, is_listed: bool, large: int
) -> None:
    """Small ones lie in the graph, large ones are read in place. Before version 4 of the format
    initialisers are listed as inputs."""
    weights = {"unread": np.ones(large, np.float32), "read": np.ones(4, np.float32)}
    listed = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in weights.items()
    ]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "read"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        "old",
        [info("x", "n", 4), *(listed if is_listed else ())],
        [info("y", "n", 4)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path = tmp_path / "model.onnx"
    opsets = [helper.make_opsetid("", 8)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=ir_version), path)
    BareModel(path, 1).check()
    rows = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    expected = whole(path, {"x": rows})["y"]
    np.testing.assert_array_equal(by_segments(source_of(path), {"x": rows})["y"], expected)
    prepare(path, 1)
