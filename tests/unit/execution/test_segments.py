"""Segments: whole programs as one step, equal to their layers, refused where values decide."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

import brisk.execution.segment as segment
from brisk.errors import BriskError, InvalidRequestError
from brisk.execution import Frame, LoadedProgram, load_program, run_program, run_serially
from brisk.graph import build_program

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_run_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that another process's work cannot decide what a test sees."""
    monkeypatch.setattr(segment, "MOST_STEP_NS", 10**12)
    monkeypatch.setattr(segment, "MOST_RECORDING_NS", 10**12)


def load(text: str, **weights: np.ndarray) -> LoadedProgram:
    model = parser.parse_model('<ir_version: 9, opset_import: ["" : 20]>\n' + text)
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return load_program(build_program(onnx.shape_inference.infer_shapes(model), name="m"), CPU)


def network() -> LoadedProgram:
    """Two convolutions, pooling and a product, for any batch."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(0.1)

    return load(
        "m (float[N, 1, 8, 8] x) => (float[N, 10] y, int64[N] best) {"
        " a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1) \n b = Relu (a)"
        " c = Conv <pads = [1, 1, 1, 1]> (b, w2, b2) \n d = Relu (c)"
        " e = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)"
        " f = GlobalAveragePool (e) \n g = Flatten (f) \n y = Gemm (g, w3, b3)"
        " best = ArgMax <axis = 1, keepdims = 0> (y) }",
        w1=weight(16, 1, 3, 3), b1=weight(16), w2=weight(32, 16, 3, 3), b2=weight(32),
        w3=weight(32, 10), b3=weight(10),
    )  # fmt: skip


def run_often(loaded: LoadedProgram, inputs: Mapping[str, Any], times: int = 3) -> None:
    for _ in range(times):
        run_program(loaded, inputs)


def assert_equal(loaded: LoadedProgram, inputs: Mapping[str, Any]) -> None:
    expected, made = run_serially(loaded, inputs), run_program(loaded, inputs)
    for name, value in expected.items():
        assert isinstance(value, torch.Tensor)
        torch.testing.assert_close(made[name], value, equal_nan=True)


def image(batch: int = 1, seed: int = 0) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 1, 8, 8, generator=torch.Generator().manual_seed(seed))}


def test_the_third_run_of_the_same_shapes_is_one_step() -> None:
    loaded = network()
    steps = []
    for seed in range(4):
        frame, count = Frame(loaded, image(seed=seed)), 1
        while not frame.step():
            count += 1
        steps.append(count)
    assert steps == [len(loaded.layers)] * 2 + [1, 1]
    assert Frame(loaded, image(), by_layers=True).step() is False


def test_a_segment_gives_what_the_layers_give_for_other_values_and_batches() -> None:
    loaded = network()
    for batch in (1, 2, 5):
        run_often(loaded, image(batch))
        for seed in range(5):
            assert_equal(loaded, image(batch, seed))
    assert len(loaded.segments) == 3
    assert_equal(loaded, image(7))


def test_strides_other_than_those_recorded_run_by_layers_first() -> None:
    loaded = load("m (float[N, M] x) => (float[N, M] y) { y = Exp (x) }")
    run_often(loaded, {"x": torch.randn(3, 3)})
    assert_equal(loaded, {"x": torch.randn(3, 3).t()})
    assert len(loaded.segments) == 1


def test_as_many_segments_as_allowed_are_made_and_no_more() -> None:
    loaded = network()
    for batch in range(1, segment.MOST_SIGNATURES + 4):
        run_often(loaded, image(batch))
        assert_equal(loaded, image(batch, 1))
    assert len(loaded.segments) == segment.MOST_SIGNATURES


@pytest.mark.parametrize(
    "text",
    [
        "m (float[3] x) => (int64[r, c] y) { y = NonZero (x) }",
        "m (float[3] x) => (float[3] y) { y = RandomUniformLike (x) }",
        "m (float x) => (float[n] y) { s = Constant <value_float = 0.0> ()"
        " d = Constant <value_float = 1.0> () \n y = Range (s, x, d) }",
        "m (float[3] x, int64[1] n) => (float[k] y) { y = Tile (x, n) }",
        "m (float[3] x) => (float[3] y) { c = Constant <value = bool {1}> ()"
        " a = ReduceMax <keepdims = 0> (x) \n t = Cast <to = 9> (a)"
        " y = If (t) <then_branch = g () => (float[3] p) { p = Exp (x) },"
        " else_branch = h () => (float[3] q) { q = Neg (x) }> }",
    ],
    ids=["NonZero", "RandomUniformLike", "Range", "Tile", "If"],
)
def test_programs_whose_calls_follow_from_values_are_refused(text: str) -> None:
    loaded = load(text)
    inputs: dict[str, torch.Tensor] = {"x": torch.tensor([1.0, 0.0, 2.0])}
    for variable in loaded.program.inputs:
        if variable.name == "n":
            inputs["n"] = torch.tensor([2])
        elif variable.type.shape == ():
            inputs["x"] = torch.tensor(4.0)
    run_often(loaded, inputs, 5)
    assert loaded.segments.refusal is not None
    assert len(loaded.segments) == 0


def test_sizes_worked_out_from_shapes_are_no_reason_to_refuse() -> None:
    loaded = load(
        "m (float[N, M] x, float[K] z) => (float[a] y) { s = Shape (x) \n i = Constant"
        " <value_ints = [0]> () \n n = Gather (s, i) \n m = Constant <value_ints = [-1]> ()"
        " t = Concat <axis = 0> (n, m) \n r = Reshape (z, t) \n q = Add (r, x)"
        " y = Reshape (q, m) }"
    )
    inputs = {"x": torch.randn(2, 3), "z": torch.randn(6)}
    run_often(loaded, inputs)
    assert len(loaded.segments) == 1, loaded.segments.refusal
    assert_equal(loaded, {"x": torch.randn(2, 3), "z": torch.randn(6)})


def test_one_tensor_given_as_two_inputs_is_never_recorded() -> None:
    loaded = load("m (float[3] x, float[3] y) => (float[3] z) { z = Sub (x, y) }")
    same = torch.randn(3)
    run_often(loaded, {"x": same, "y": same}, 3)
    assert len(loaded.segments) == 0
    assert_equal(loaded, {"x": torch.randn(3), "y": torch.randn(3)})


def test_an_input_that_is_an_output_stays_the_same_memory() -> None:
    loaded = load("m (float[3] x) => (float[3] y, float[3] z) { y = Identity (x) \n z = Exp (y) }")
    run_often(loaded, {"x": torch.randn(3)})
    given = torch.randn(3)
    made = run_program(loaded, {"x": given})
    assert isinstance(made["y"], torch.Tensor)
    assert made["y"].data_ptr() == given.data_ptr()
    assert_equal(loaded, {"x": given})


def test_wrong_inputs_are_refused_as_ever_once_there_is_a_segment() -> None:
    loaded = network()
    run_often(loaded, image())
    with pytest.raises(InvalidRequestError, match=r"expected float32 \[N, 1, 8, 8\]"):
        run_program(loaded, {"x": torch.zeros(1, 1, 8, 9)})
    with pytest.raises(InvalidRequestError, match="is missing"):
        run_program(loaded, {})
    with pytest.raises(InvalidRequestError, match="has no input"):
        run_program(loaded, {**image(), "other": torch.zeros(1)})


def test_an_error_in_a_segment_names_the_layer() -> None:
    loaded = load(
        "m (float[N, 2] x, int64[K] i) => (float[K, 2] y) { a = Exp (x) \n y = Gather (a, i) }"
    )
    good = {"x": torch.randn(3, 2), "i": torch.tensor([0, 2])}
    run_often(loaded, good)
    bad = good | {"i": torch.tensor([0, 9])}
    errors = []
    for run in (run_serially, run_program):
        with pytest.raises(BriskError, match="Gather") as caught:
            run(loaded, bad)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]


def test_only_the_requested_outputs_are_given() -> None:
    loaded = network()
    run_often(loaded, image())
    assert list(run_program(loaded, image(), ["best"])) == ["best"]


def test_a_program_that_takes_too_long_stays_with_its_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment, "MOST_STEP_NS", 0)
    loaded = network()
    run_often(loaded, image(), 10)
    assert len(loaded.segments) == 0
    assert loaded.segments.refusal is None
    for batch in range(2, 2 + segment.MOST_GIVEN_UP):
        run_often(loaded, image(batch))
    assert loaded.segments.refusal == "longer than 0 ms, seen 4 times"


def test_threads_with_different_shapes_share_a_program() -> None:
    loaded = network()
    failures: list[BaseException] = []
    start = threading.Barrier(2, timeout=10)

    def serve(batch: int) -> None:
        try:
            start.wait()
            for seed in range(30):
                assert_equal(loaded, image(batch, seed))
        except BaseException as error:  # noqa: BLE001  # told to the test's thread
            failures.append(error)

    threads = [threading.Thread(target=serve, args=(batch,)) for batch in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert len(loaded.segments) == 2
