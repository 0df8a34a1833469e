"""A row's early answer is the same whatever the other rows of its batch are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from brisk.exits.base_model import load_graph
from brisk.exits.cascade import Cascade
from brisk.exits.cascade_file import read_cascade, write_cascade
from brisk.exits.data.samples import SampleGroups, Samples
from brisk.exits.exploration import ExplorationSettings, explore_whole
from brisk.exits.heads.exit_model import AnswerForm, ExitModel
from brisk.exits.learning.quantising import quantised
from brisk.exits.model_graph import read_graph
from brisk.exits.scores import find_values
from brisk.settings import Tolerance, tolerance
from brisk_bench.samples.writer import GraphWriter
from support.exits.benchmarks import win_benchmarks
from support.exits.cascades import answered, images, network

WIDTH, HIDDEN, VALUES = 12, 32, 6
COSINE = tolerance("cosine 0.98")

Inputs = dict[str, np.ndarray]


def pair_encoder() -> onnx.ModelProto:
    """Reads two tensors, so that products alone are in int8, with ranges found in each run."""
    random = np.random.default_rng(0)
    graph = GraphWriter("pair", opset=17)
    left = graph.input("left", "float32", ("batch", WIDTH))
    right = graph.input("right", "float32", ("batch", WIDTH))
    value = graph.add("Concat", left, right, axis=1)
    value = graph.add("MatMul", value, graph.weight(random.normal(0, 0.3, (2 * WIDTH, HIDDEN))))
    value = graph.add("Tanh", value)
    value = graph.add("MatMul", value, graph.weight(random.normal(0, 0.3, (HIDDEN, VALUES))))
    graph.output(value, "vector", "float32", ("batch", VALUES))
    return graph.model()


def pairs(count: int, seed: int) -> Inputs:
    random = np.random.default_rng(seed)
    return {
        name: random.normal(0, 1, (count, WIDTH)).astype(np.float32) for name in ("left", "right")
    }


def learned(file: Path, rows: Inputs, kept_to: Tolerance) -> Cascade:
    """The early answers that ``rows`` teach, as they are read from their file."""
    groups = SampleGroups.of([Samples(rows)])
    found = explore_whole(file, groups, kept_to, ExplorationSettings(accuracy=0.9))
    assert found.cascade is not None, found.reason
    path = file.with_name("written.caches")
    write_cascade(path, found.cascade)
    return read_cascade(path, None)


def operators(cascade: Cascade) -> set[str]:
    graph = onnx.load_model_from_string(cascade.exits[0].model).graph
    return {node.op_type for node in graph.node}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    win_benchmarks(monkeypatch)
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("way", ["ranges of each run", "ranges of samples"])
def test_rows_of_thousands_change_no_other_row_s_answer(file: Path, way: str) -> None:
    is_dynamic = way == "ranges of each run"
    onnx.save(pair_encoder() if is_dynamic else network(tail="plain"), file)
    samples = pairs(800, 3) if is_dynamic else {"image": images(600, seed=3)}
    ordinary = pairs(16, 4) if is_dynamic else {"image": images(16, seed=4)}
    cascade = learned(file, samples, COSINE)
    assert ("DynamicQuantizeLinear" in operators(cascade)) is is_dynamic
    strange = {name: np.full_like(array[:1], 1000) for name, array in ordinary.items()}
    spoilt = {name: np.concatenate([ordinary[name], strange[name]]) for name in ordinary}
    base = load_graph(read_graph(file))
    together = answered(base, cascade, spoilt)
    early = 0
    (output,) = together.results()
    for row in range(16):
        one = {name: np.ascontiguousarray(array[row : row + 1]) for name, array in spoilt.items()}
        alone = answered(base, cascade, one)
        if not is_dynamic:
            assert together.answerers([row]) == alone.answerers([0])
            expected = alone.results()[output]
            np.testing.assert_allclose(together.results()[output][[row]], expected, 1e-3, 1e-3)
        early += alone.has_early_answers
    assert early > 8
    if is_dynamic:
        assert not together.has_early_answers, "the exact model computes several rows at once"
        own = base.run(spoilt)
        np.testing.assert_allclose(together.results()[output], own[output], 1e-5, 1e-5)


def test_a_model_in_int8_that_mixes_rows_is_not_proved(file: Path) -> None:
    onnx.save(network(tail="mixing"), file)
    graph = read_graph(file)
    with pytest.raises(ValueError, match="mixes the rows of a batch"):
        quantised(graph, find_values(graph, COSINE), {"image": images(64)})


BRANCHING = """
<ir_version: 8, opset_import: ["" : 17]>
branching (float[rows, 10] hidden) => (float[rows, 10] logits, float[rows] score, bool[rows] near)
<bool yes = {1}, int64[1] inner = {1}>
{
    logits = If (yes) <
        then_branch = ranged () => (float[rows, 10] wide) {
            q, scale, zero = DynamicQuantizeLinear (hidden)
            wide = DequantizeLinear (q, scale, zero)
        },
        else_branch = exact () => (float[rows, 10] same) { same = Identity (hidden) }
    >
    sums = ReduceSum <keepdims = 0> (logits, inner)
    score = Sigmoid (sums)
    near = Equal (sums, sums)
}
"""
"""A smaller model that a user has quantised, as an exit."""


def test_ranges_of_each_run_are_found_in_branches_too() -> None:
    model = onnx.parser.parse_model(BRANCHING).SerializeToString()
    exit_model = ExitModel(model, (10,), AnswerForm(10), is_whole=True)
    rows = np.random.default_rng(0).normal(0, 1, (3, 10)).astype(np.float32)
    rows[2] *= 1000
    together = exit_model(rows)
    for row in range(3):
        alone = exit_model(rows[row : row + 1])
        np.testing.assert_array_equal(together.logits[row], alone.logits[0])
        np.testing.assert_array_equal(together.scores[row], alone.scores[0])
