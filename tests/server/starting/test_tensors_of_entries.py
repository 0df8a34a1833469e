"""What entries say of tensors: completed from the model, compared with it, and answered so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tritonclient import http
from tritonclient.utils import InferenceServerException

from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient
from support.server.entries import doubled, identity, make_model, write_entry
from support.server.running import StartServer

pytestmark = pytest.mark.server

PLATFORM = 'platform: "onnxruntime_onnx" '
FLOAT = TensorProto.FLOAT


def mean_of_rows() -> onnx.ModelProto:
    """``[1, 3]``, of which its file says ``["o", 3]``."""
    return make_model(
        [helper.make_node("ReduceMean", ["x", "axes"], ["y"])],
        [("x", FLOAT, ("b", 3))],
        [("y", FLOAT, ("o", 3))],
        [("axes", np.array([0]))],
    )


def total() -> onnx.ModelProto:
    """A single value, of rank 0."""
    return make_model(
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
        [("x", FLOAT, (4,))],
        [("y", FLOAT, ())],
    )


def untyped() -> onnx.ModelProto:
    """``doubled``, whose file says nothing of its outputs but the names."""
    model = doubled()
    for output in model.graph.output:
        output.ClearField("type")
    return model


def tensor(name: str, kind: str, dims: str, more: str = "") -> str:
    return f'[ {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {more} }} ] '


def both(dims: str) -> str:
    return PLATFORM + f"input {tensor('x', 'FP32', dims)} output {tensor('y', 'FP32', dims)}"


def scaled() -> onnx.ModelProto:
    """``y = x * level``, of which ``level`` has no sizes."""
    return make_model(
        [helper.make_node("Mul", ["x", "level"], ["y"])],
        [("x", FLOAT, ("b", 4)), ("level", FLOAT, ())],
        [("y", FLOAT, ("b", 4))],
    )


SCALED = (
    PLATFORM + 'max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }, '
    '{ name: "level" data_type: TYPE_FP32 dims: [ 1 ] } ] '
    f"output {tensor('y', 'FP32', '4')} dynamic_batching {{ }}"
)
ENSEMBLE = f"""
platform: "ensemble"
input {tensor("in", "FP32", "4")}
output {tensor("out", "FP32", "1")}
ensemble_scheduling {{
  step [
    {{ model_name: "total" model_version: -1
      input_map {{ key: "x" value: "in" }} output_map {{ key: "y" value: "sum" }} }},
    {{ model_name: "scalar" model_version: -1
      input_map {{ key: "x" value: "sum" }} output_map {{ key: "y" value: "out" }} }}
  ]
}}
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tensors")
    write_entry(directory, "rows", identity(FLOAT, ("b",)), PLATFORM)
    write_entry(directory, "strings", identity(TensorProto.STRING, ("b",)), PLATFORM)
    write_entry(directory, "means", mean_of_rows(), PLATFORM)
    write_entry(directory, "untyped", untyped(), PLATFORM)
    labels = tensor("y", "FP32", "4", 'label_filename: "labels.txt"')
    labelled = write_entry(directory, "labelled", doubled(), f"{PLATFORM} output {labels}")
    (labelled / "labels.txt").write_text("ant\nbee\ncat\ndog\n")
    said = f"{PLATFORM} max_batch_size: 8 input {tensor('x', 'FP32', '4')}"
    write_entry(directory, "said", doubled(), said)
    write_entry(directory, "whole", doubled(), f"{PLATFORM} input {tensor('x', 'FP32', '-1, 4')}")
    named = 'default_model_filename: "sub/other.onnx"'
    nested = write_entry(directory, "nested", doubled(), PLATFORM + named)
    (nested / "1" / "sub").mkdir()
    (nested / "1" / "model.onnx").rename(nested / "1" / "sub" / "other.onnx")
    write_entry(directory, "total", total(), PLATFORM)
    write_entry(directory, "scalar", identity(FLOAT, ()), PLATFORM)
    write_entry(directory, "square", identity(FLOAT, ()), both("1, 1"))
    write_entry(directory, "scaled", scaled(), SCALED)
    (directory / "chained" / "1").mkdir(parents=True)
    (directory / "chained" / "config.pbtxt").write_text(ENSEMBLE)
    return directory


@pytest.fixture(scope="module")
def server(start_shared: StartServer, repository: Path) -> TritonServer:
    names = [path.name for path in repository.iterdir()]
    options = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in names)]
    return start_shared(repository, options)


def described(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a completed configuration says of them, beside what Triton adds to any."""
    wanted = ("name", "data_type", "dims", "reshape")
    return [{field: each[field] for field in wanted if field in each} for each in tensors]


@pytest.mark.parametrize(("name", "kind"), [("rows", "FP32"), ("strings", "STRING")])
def test_tensors_of_rank_one_are_rows_of_one_element(
    control: http.InferenceServerClient, client: InferenceClient, name: str, kind: str
) -> None:
    config = control.get_model_config(name)
    assert config["max_batch_size"] == 4
    assert "dynamic_batching" in config
    one = {"data_type": f"TYPE_{kind}", "dims": [1], "reshape": {"shape": []}}
    assert described(config["input"]) == [{"name": "x", **one}]
    assert described(config["output"]) == [{"name": "y", **one}]
    x = np.arange(3, dtype=np.float32).reshape(3, 1)
    given = x if kind == "FP32" else x.astype(str).astype(object)
    y = client.infer(name, {"x": given})["y"]
    assert y.shape == (3, 1)
    assert [float(value) for value in y.reshape(-1)] == [0, 1, 2]


def test_a_mean_over_rows_takes_any_number_of_them(
    control: http.InferenceServerClient, client: InferenceClient
) -> None:
    config = control.get_model_config("means")
    assert config["max_batch_size"] == 0
    assert described(config["output"]) == [{"name": "y", "data_type": "TYPE_FP32", "dims": [1, 3]}]
    x = np.arange(18, dtype=np.float32).reshape(6, 3)
    y = client.infer("means", {"x": x})["y"]
    np.testing.assert_allclose(y, x.mean(axis=0, keepdims=True))


def test_outputs_that_the_file_says_nothing_of_are_inferred(
    control: http.InferenceServerClient, client: InferenceClient
) -> None:
    config = control.get_model_config("untyped")
    assert config["max_batch_size"] == 4
    said = {"data_type": "TYPE_FP32", "dims": [4]}
    assert described(config["output"]) == [{"name": "y", **said}, {"name": "z", **said}]
    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(client.infer("untyped", {"x": x})["y"], 2 * x)


def test_an_entry_whose_file_lies_in_a_folder_of_the_version_is_completed_from_it(
    control: http.InferenceServerClient, client: InferenceClient
) -> None:
    config = control.get_model_config("nested")
    assert config["max_batch_size"] == 4
    assert described(config["input"]) == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]
    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(client.infer("nested", {"x": x})["y"], 2 * x)


@pytest.mark.parametrize(("name", "batch"), [("labelled", 4), ("said", 8), ("whole", 0)])
def test_an_entry_that_gives_one_side_is_completed_as_it_says(
    control: http.InferenceServerClient, client: InferenceClient, name: str, batch: int
) -> None:
    config = control.get_model_config(name)
    assert config["max_batch_size"] == batch
    assert ("dynamic_batching" in config) == (batch > 0)
    dims = [4] if batch else [-1, 4]
    for given in (*config["input"], *config["output"]):
        assert given["dims"] == dims
    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(client.infer(name, {"x": x})["y"], 2 * x)


@pytest.mark.parametrize(("name", "shape"), [("scalar", (1,)), ("square", (1, 1))])
def test_a_value_without_sizes_is_taken_and_given_in_the_entrys_dims(
    client: InferenceClient, name: str, shape: tuple[int, ...]
) -> None:
    y = client.infer(name, {"x": np.full(shape, 7, np.float32)})["y"]
    assert y.shape == shape
    assert y.reshape(()) == 7


def test_a_value_without_sizes_is_taken_beside_a_row(client: InferenceClient) -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    y = client.infer("scaled", {"x": x, "level": np.full((1, 1), 3, np.float32)})["y"]
    np.testing.assert_array_equal(y, 3 * x)


def test_the_next_step_of_an_ensemble_takes_a_value_without_sizes(client: InferenceClient) -> None:
    x = np.arange(4, dtype=np.float32)
    assert client.infer("total", {"x": x})["y"].tolist() == [6]
    assert client.infer("chained", {"in": x})["out"].tolist() == [6]


BATCHED = PLATFORM + "max_batch_size: 8 "
GOOD = f"{BATCHED} input {tensor('x', 'FP32', '4')} output {tensor('y', 'FP32', '4')}"
CONTRADICTIONS = {
    "input_type": (
        GOOD.replace("FP32", "INT32", 1),
        "datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
    ),
    "output_size": (
        f"{BATCHED} output {tensor('y', 'FP32', '-1')}",
        r"\[-1, -1\] .* output 'y', .* \[-1, 4\]",
    ),
    "input_name": (GOOD.replace('"x"', '"q"'), "unexpected input 'q' .* inputs are 'x'"),
}
"""Of each kind one; all are told apart in ``support.server.contradictions``."""


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_reload_that_contradicts_the_model_is_refused_and_the_old_version_goes_on(
    repository: Path, control: http.InferenceServerClient, client: InferenceClient, name: str
) -> None:
    wrong, words = CONTRADICTIONS[name]
    directory = write_entry(repository, name, doubled(), GOOD)
    control.load_model(name)
    (directory / "config.pbtxt").write_text(wrong)
    with pytest.raises(InferenceServerException, match=words):
        control.load_model(name)
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(client.infer(name, {"x": x})["y"], 2 * x)
