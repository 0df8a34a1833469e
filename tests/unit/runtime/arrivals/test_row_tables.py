"""Which weights are tables of which a run reads the rows that an input names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.errors import InvalidModelError
from brisk.segments.model.row_tables import NamedTable, row_tables
from support.models.segment_models import info, save

ROWS, WIDTH = 5000, 256
TABLE = np.zeros((ROWS, WIDTH), "f4")
FOUND = [NamedTable("t", "ids", ROWS)]


def tables(
    tmp_path: Path,
    nodes: list[onnx.NodeProto],
    kind: int = TensorProto.INT64,
    table: np.ndarray = TABLE,
    outputs: tuple[str, ...] = ("y",),
) -> list[NamedTable]:
    infos = [info(name, *["a", "b", "c"]) for name in outputs]
    inputs = [info("ids", "n", "s", kind=kind), info("x", "n", WIDTH)]
    weights = {"t": table, "axes": np.array([0]), "yes": np.array(True)}
    path = save(tmp_path / "m.onnx", nodes, inputs, infos, weights)
    return list(row_tables(onnx.load(path).graph, {"ids", "x"}))


def gather(ids: str = "ids", **attributes: int) -> onnx.NodeProto:
    return helper.make_node("Gather", ["t", ids], ["y"], **attributes)


def cast(to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", ["ids"], ["wide"], to=to)


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
def test_a_large_weight_whose_rows_an_input_numbers_is_one(tmp_path: Path, kind: int) -> None:
    assert tables(tmp_path, [gather()], kind) == FOUND
    assert tables(tmp_path, [gather(axis=0)], kind) == FOUND
    assert tables(tmp_path, [cast(TensorProto.INT64), gather("wide")], kind) == FOUND
    same = helper.make_node("Identity", ["ids"], ["wide"])
    assert tables(tmp_path, [same, gather("wide")], kind) == FOUND


@pytest.mark.parametrize("dtype", ["f2", "i1", "u1"])
def test_of_other_types_too(tmp_path: Path, dtype: str) -> None:
    large = np.zeros((4 * ROWS, WIDTH), dtype)
    assert tables(tmp_path, [gather()], table=large) == [NamedTable("t", "ids", 4 * ROWS)]


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([gather(axis=1)], id="columns"),
        pytest.param([cast(TensorProto.INT32), gather("wide")], id="numbers cut short"),
        pytest.param([helper.make_node("Gather", ["t", "axes"], ["y"])], id="constant numbers"),
        pytest.param(
            [helper.make_node("Abs", ["ids"], ["wide"]), gather("wide")], id="computed numbers"
        ),
        pytest.param(
            [gather(), helper.make_node("MatMul", ["x", "t"], ["z"])], id="multiplied with, too"
        ),
        pytest.param([gather(), helper.make_node("Gather", ["t", "ids"], ["z"])], id="read twice"),
        pytest.param(
            [helper.make_node("GatherElements", ["t", "ids"], ["y"])], id="another operator"
        ),
        pytest.param([helper.make_node("Gather", ["x", "ids"], ["y"])], id="no weight"),
        pytest.param(
            [
                gather(),
                helper.make_node(
                    "If",
                    ["yes"],
                    ["z"],
                    **{
                        branch: helper.make_graph(
                            [helper.make_node("Neg", ["t"], ["v"])], "b", [], [info("v", "a", "b")]
                        )
                        for branch in ("then_branch", "else_branch")
                    },
                ),
            ],
            id="read by a body",
        ),
    ],
)
def test_of_which_anything_else_is_computed_is_none(
    tmp_path: Path, nodes: list[onnx.NodeProto]
) -> None:
    assert tables(tmp_path, nodes) == []


def test_an_identity_without_an_output_hands_on_no_numbers(tmp_path: Path) -> None:
    """A model that arrives is looked through before ONNX Runtime has refused it."""
    assert tables(tmp_path, [helper.make_node("Identity", ["ids"], []), gather()]) == FOUND


def test_none_is_small_or_given_out(tmp_path: Path) -> None:
    assert tables(tmp_path, [gather()], table=TABLE[:4000]) == []
    assert tables(tmp_path, [gather()], outputs=("y", "t")) == []


def test_of_a_shape_that_no_tensor_has_it_is_refused_by_name(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [gather()], [info("ids", "n", kind=7)], [info("y", "n")], {})
    model = onnx.load(path)
    model.graph.initializer.add(name="t", data_type=TensorProto.FLOAT, dims=[2**62] * 240)
    with pytest.raises(InvalidModelError, match="tensor 't' has 240 dimensions, expected at most"):
        list(row_tables(model.graph, {"ids"}))
