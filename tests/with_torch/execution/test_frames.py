"""Frames: one layer a step, values freed by table, errors that say where and whose."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

from brisk.errors import InternalError, InvalidRequestError
from brisk.execution.frame import TorchFrame, run_serially
from brisk.execution.loading import LoadedProgram, load_program
from brisk.graph.reader import build_program

CPU = torch.device("cpu")


def load(text: str) -> LoadedProgram:
    model = parser.parse_model('<ir_version: 9, opset_import: ["" : 20]>\n' + text)
    return load_program(build_program(onnx.shape_inference.infer_shapes(model), name="m"), CPU)


def chain() -> LoadedProgram:
    return load(
        "m (float[N, 3] x, float[M, 3] y) => (float[a, b] z, float[N, 3] w)\n"
        "{ w = Sin (x) \n t = Concat <axis = 0> (w, y) \n u = Exp (t) \n z = Tanh (u) }"
    )


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def test_a_step_runs_one_layer_and_the_last_one_says_so() -> None:
    loaded = chain()
    frame = TorchFrame(loaded, {"x": ones(2, 3), "y": ones(1, 3)})
    finished = [frame.step() for _ in loaded.layers]
    assert finished == [False, False, False, True]
    assert frame.is_finished
    expected = torch.tanh(torch.exp(torch.cat((torch.sin(ones(2, 3)), ones(1, 3)))))
    assert torch.equal(frame.results()["z"], expected)  # type: ignore[arg-type]


def test_values_are_freed_after_their_last_use_and_outputs_are_kept() -> None:
    x = ones(2, 3)
    watched = weakref.ref(x)
    frame = TorchFrame(chain(), {"x": x, "y": ones(1, 3)})
    del x
    assert watched() is not None
    frame.step()  # Sin is the only reader of x
    assert watched() is None
    while not frame.step():
        pass
    assert set(frame.results()) == {"z", "w"}


def test_results_before_the_end_are_an_internal_error() -> None:
    frame = TorchFrame(chain(), {"x": ones(2, 3), "y": ones(1, 3)})
    frame.step()
    with pytest.raises(InternalError, match="has run 1 of 4 layers"):
        frame.results()


def test_only_the_requested_outputs_are_returned() -> None:
    results = run_serially(chain(), {"x": ones(2, 3), "y": ones(1, 3)}, ["w"])
    assert list(results) == ["w"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": ones(1, 3)}, "input 'y' is missing"),
        (
            {"x": ones(1, 3), "y": ones(1, 3), "q": ones(1)},
            r"there is no input \['q'\]; the inputs are",
        ),
        (
            {"x": ones(1, 3).double(), "y": ones(1, 3)},
            r"'x': expected float32 \[N, 3\]",
        ),
        ({"x": ones(1, 4), "y": ones(1, 3)}, r"expected float32 \[N, 3\], got float32 \[1, 4\]"),
        ({"x": ones(3), "y": ones(1, 3)}, r"got float32 \[3\]"),
        ({"x": None, "y": ones(1, 3)}, "expected a tensor, got nothing"),
        ({"x": [ones(1, 3)], "y": ones(1, 3)}, "expected a tensor, got a sequence"),
        ({"x": np.array(["a"], object), "y": ones(1, 3)}, "got string"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_before_anything_runs(
    inputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        TorchFrame(chain(), inputs)


def test_an_unknown_requested_output_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"no output \['v'\]; the outputs are"):
        TorchFrame(chain(), {"x": ones(1, 3), "y": ones(1, 3)}, ["v"])


def test_sizes_that_do_not_fit_one_another_are_the_requests_fault_and_name_the_layer() -> None:
    loaded = load("m (float[N] x, float[M] y) => (float[K] z) { z = Add (x, y) }")
    with pytest.raises(InvalidRequestError, match=r"layer 0 \(node 'z' \(Add, domain ai.onnx"):
        run_serially(loaded, {"x": ones(2), "y": ones(3)})


def test_an_index_out_of_range_is_the_requests_fault_even_with_static_shapes() -> None:
    loaded = load("m (float[4] x, int64[1] i) => (float[1] z) { z = Gather (x, i) }")
    with pytest.raises(InvalidRequestError, match="Gather"):
        run_serially(loaded, {"x": ones(4), "i": torch.tensor([9])})


def test_a_weight_that_is_an_output_is_given_back() -> None:
    loaded = load(
        "m (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1, 2}>{ y = Add (x, w) }"
    )
    results: Any = run_serially(loaded, {"x": ones(2)})
    assert results["w"].tolist() == [1, 2]
    assert results["y"].tolist() == [2, 3]


def test_empty_batches_run_through() -> None:
    results: Any = run_serially(chain(), {"x": ones(0, 3), "y": ones(0, 3)})
    assert results["z"].shape == (0, 3)


def test_frames_of_one_program_do_not_share_values() -> None:
    loaded = chain()
    first = TorchFrame(loaded, {"x": ones(1, 3), "y": ones(1, 3)})
    first.step()
    second: Any = run_serially(loaded, {"x": 2 * ones(1, 3), "y": ones(1, 3)})
    while not first.step():
        pass
    made: Any = first.results()
    assert made["w"][0, 0].item() == pytest.approx(np.sin(1.0))
    assert second["w"][0, 0].item() == pytest.approx(np.sin(2.0))


def test_bodies_read_outer_values_and_outer_constants() -> None:
    loaded = load(
        """m (float[2] x, int64 n, bool go) => (float[2] y, float[K, 2] all)
        <float[2] c = {1, 10}> {
          y, all = Loop (n, go, x) <body = b (int64 i, bool on, float[2] v)
            => (bool on2, float[2] v2, float[2] s) {
              on2 = Identity (on)
              t = Add (v, c)
              v2 = Add (t, x)
              s = Identity (v2)
          }> }"""
    )
    inputs = {"x": ones(2), "n": torch.tensor(3), "go": torch.tensor(True)}
    results: Any = run_serially(loaded, inputs)
    assert results["y"].tolist() == [7, 34]
    assert results["all"].tolist() == [[3, 12], [5, 23], [7, 34]]
    none: Any = run_serially(loaded, inputs | {"n": torch.tensor(0)})
    assert none["all"].shape == (0, 2)
