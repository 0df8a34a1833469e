"""Products with constant matrices by the compiled library, against torch in double precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from brisk.errors import BriskError
from brisk.execution.loading import LoadedProgram, load_program
from brisk.execution.serial import run_serially
from brisk.graph.reader import build_program
from brisk.solutions import gemm_blocked

pytestmark = pytest.mark.usefixtures("instruction_set")

CPU = torch.device("cpu")


def load(matrix: np.ndarray, nodes: Sequence[tuple[str, ...]], rank: int = 3) -> LoadedProgram:
    """``x`` times ``matrix``, then each of (operator, second operand if any) in turn."""
    generator = np.random.default_rng(0)
    row = generator.standard_normal(matrix.shape[1]).astype(np.float32)
    made = [helper.make_node("MatMul", ["x", "w"], ["v0"])]
    for operator, *others in nodes:
        made.append(helper.make_node(operator, [made[-1].output[0], *others], [f"v{len(made)}"]))
    sizes = [f"d{axis}" for axis in range(rank)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)]
    if any("z" in others for _, *others in nodes):
        wanted = [*sizes[:-1], matrix.shape[1]]
        inputs.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, wanted))
    graph = helper.make_graph(
        made,
        "product",
        inputs,
        [helper.make_tensor_value_info(made[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(matrix, "w"), numpy_helper.from_array(row, "row")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    return load_program(build_program(model), CPU)


def make_blocked(
    matrix: np.ndarray, nodes: Sequence[tuple[str, ...]], rank: int = 3
) -> LoadedProgram:
    """As ``load``, computed by the solution in question."""
    loaded = load(matrix, nodes, rank)
    assert loaded.layers[0].solution.name == "blocked_matrix"
    return loaded


def matrix_of(rows: int, columns: int) -> np.ndarray:
    generator = np.random.default_rng(1)
    return (generator.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)


def row_of(matrix: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(
        np.random.default_rng(0).standard_normal(matrix.shape[1]).astype(np.float32)
    )


@pytest.mark.parametrize(("rows", "columns"), [(130, 129), (64, 1000), (1000, 17)])
@pytest.mark.parametrize("shape", [(1,), (4,), (70,), (1, 1), (2, 5), (3, 43)])
def test_products_with_a_row_added_are_as_exact_as_float32_can_be(
    rows: int, columns: int, shape: tuple[int, ...]
) -> None:
    matrix = matrix_of(rows, columns)
    loaded = make_blocked(matrix, [("Add", "row"), ("Gelu",)], rank=len(shape) + 1)
    x = torch.randn(*shape, rows)
    (found,) = run_serially(loaded, {"x": x}).values()
    plain = x.double() @ torch.from_numpy(matrix).double() + row_of(matrix)
    expected = torch.nn.functional.gelu(plain)
    assert isinstance(found, torch.Tensor)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 3e-6 * plain.abs().max()


def test_a_sum_with_a_tensor_of_the_results_shape_is_fused() -> None:
    matrix = matrix_of(100, 200)
    loaded = make_blocked(matrix, [("Add", "row"), ("Add", "z"), ("Relu",)])
    assert len(loaded.layers) == 1
    x, z = torch.randn(2, 9, 100), torch.randn(2, 9, 200)
    (found,) = run_serially(loaded, {"x": x, "z": z}).values()
    expected = (x.double() @ torch.from_numpy(matrix).double() + row_of(matrix) + z).relu()
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-5)


def test_rank_four_and_inputs_that_lie_otherwise_in_memory() -> None:
    matrix = matrix_of(96, 200)
    x = torch.randn(2, 96, 3, 5).permute(0, 2, 3, 1)
    (found,) = run_serially(make_blocked(matrix, [("Relu",)], rank=4), {"x": x}).values()
    torch.testing.assert_close(found, (x @ torch.from_numpy(matrix)).relu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("is_intel", "expected"), [(True, "constant"), (False, "blocked")])
def test_long_rows_are_left_to_mkl_on_the_processors_that_it_is_tuned_for(
    monkeypatch: pytest.MonkeyPatch, is_intel: bool, expected: str
) -> None:
    monkeypatch.setattr(gemm_blocked, "is_intel", lambda: is_intel)
    matrix = matrix_of(1100, 20)
    loaded = load(matrix, [("Relu",)])
    assert loaded.layers[0].solution.name == f"{expected}_matrix"
    x = torch.randn(2, 30, 1100)
    (found,) = run_serially(loaded, {"x": x}).values()
    torch.testing.assert_close(found, (x @ torch.from_numpy(matrix)).relu(), rtol=1e-4, atol=1e-5)


def test_a_product_with_nothing_behind_it() -> None:
    matrix = matrix_of(200, 96)
    x = torch.randn(2, 30, 200)
    (found,) = run_serially(make_blocked(matrix, []), {"x": x}).values()
    torch.testing.assert_close(found, x @ torch.from_numpy(matrix), rtol=1e-4, atol=1e-5)


def test_empty_inputs_give_empty_results_and_wrong_ones_are_refused() -> None:
    loaded = make_blocked(matrix_of(200, 96), [("Relu",)])
    (found,) = run_serially(loaded, {"x": torch.zeros(0, 4, 200)}).values()
    assert isinstance(found, torch.Tensor)
    assert found.shape == (0, 4, 96)
    with pytest.raises(BriskError, match="a matrix of 200 rows cannot take"):
        run_serially(loaded, {"x": torch.zeros(1, 4, 199)})
