"""A configuration that contradicts its model is refused with both sides; any other is not."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from brisk.errors import InvalidConfigurationError
from brisk.stub.config.agreement import check_tensors
from support.server.contradictions import CONTRADICTIONS, X, Y, config, saved, tensor


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_refused_with_both_sides(tmp_path: Path, name: str) -> None:
    wrong, words = CONTRADICTIONS[name]
    path = saved(tmp_path)
    check_tensors(config(), path)
    with pytest.raises(InvalidConfigurationError, match=words):
        check_tensors(wrong, path)


def test_an_input_that_is_missing_is_named(tmp_path: Path) -> None:
    inputs = [("x", TensorProto.FLOAT, ["b", 4]), ("ids", TensorProto.INT64, ["b", 2])]
    with pytest.raises(
        InvalidConfigurationError,
        match=r"the configuration lacks 'ids' \(TYPE_INT64 \[-1, 2\]\), which the model needs$",
    ):
        check_tensors(config(), saved(tmp_path, inputs))


def test_a_misspelt_input_is_told_with_the_nearest_name_and_no_list_of_weights(
    tmp_path: Path,
) -> None:
    """As in files of ONNX IR below 4, which list all weights among the inputs."""
    names = ("data_0", "conv1_b_0", "conv1_w_0")
    path = saved(
        tmp_path, [(name, TensorProto.FLOAT, ["b", 4]) for name in names], weights=names[1:]
    )
    told = (
        r"^unexpected input 'data' in the configuration, the model's inputs are 'data_0', and 2 "
        r"whose values are in its file; did you mean 'data_0'\?; the configuration lacks 'data_0'"
    )
    with pytest.raises(InvalidConfigurationError, match=told):
        check_tensors(config(tensor("data", "FP32", [4])), path)


def test_a_first_size_that_is_fixed_is_no_batch(tmp_path: Path) -> None:
    path = saved(tmp_path, [("x", TensorProto.FLOAT, [1, 4])], [("y", TensorProto.FLOAT, [1, 4])])
    with pytest.raises(
        InvalidConfigurationError, match=r"max_batch_size is 8, but input 'x' has shape \[1, 4\]"
    ):
        check_tensors(config(), path)
    unbatched = {"input": [tensor("x", "FP32", [1, 4])], "output": [tensor("y", "FP32", [1, 4])]}
    check_tensors(unbatched, path)


def test_all_contradictions_are_named_together(tmp_path: Path) -> None:
    wrong = config(tensor("x", "INT32", [5]), y=tensor("y", "INT8", [6]))
    with pytest.raises(InvalidConfigurationError, match=r"INT32.*\[-1, 5\].*INT8.*\[-1, 6\]"):
        check_tensors(wrong, saved(tmp_path))


def test_sizes_of_inputs_may_be_variable_on_one_side(tmp_path: Path) -> None:
    check_tensors(config(tensor("x", "FP32", ["-1"])), saved(tmp_path))
    inputs = [("x", TensorProto.FLOAT, ["b", "n"])]
    check_tensors(config(), saved(tmp_path, inputs))
    check_tensors(config(), saved(tmp_path, [("x", TensorProto.FLOAT, None)]))


def test_what_the_model_meets_behind_a_reshape_is_compared(tmp_path: Path) -> None:
    square = {"reshape": {"shape": [2, 2]}}
    path = saved(
        tmp_path, [("x", TensorProto.FLOAT, ["b", 2, 2])], [("y", TensorProto.FLOAT, ["b", 2, 2])]
    )
    check_tensors(config(tensor(*X, **square), y=tensor(*Y, **square)), path)
    with pytest.raises(InvalidConfigurationError, match=r"shape \[-1, 4\].*output 'y'"):
        check_tensors(config(tensor(*X, **square)), path)
    rows = saved(tmp_path, [("x", TensorProto.FLOAT, ["b"])], [("y", TensorProto.FLOAT, ["b"])])
    one = tensor("x", "FP32", [1], reshape={"shape": []})
    check_tensors(config(one, y={**one, "name": "y"}), rows)


def test_outputs_and_optional_inputs_may_be_left_out(tmp_path: Path) -> None:
    inputs = [("x", TensorProto.FLOAT, ["b", 4]), ("bias", TensorProto.FLOAT, [4])]
    outputs = [("y", TensorProto.FLOAT, ["b", 4]), ("z", TensorProto.FLOAT, ["b", 4])]
    path = saved(tmp_path, inputs, outputs, weights=["bias"])
    check_tensors(config(), path)
    unbatched = {
        "input": [tensor("x", "FP32", [-1, 4]), tensor("bias", "FP32", [4], optional=True)],
        "output": [tensor("y", "FP32", [-1, 4])],
    }
    check_tensors(unbatched, path)
    unbatched["input"][1]["data_type"] = "TYPE_INT8"
    with pytest.raises(InvalidConfigurationError, match="TYPE_INT8 for input 'bias'"):
        check_tensors(unbatched, path)


@pytest.mark.parametrize("dims", [[1], [1, 1]])
def test_a_value_without_sizes_has_any_number_of_ones(tmp_path: Path, dims: list[int]) -> None:
    path = saved(tmp_path, [("x", TensorProto.FLOAT, [])], [("y", TensorProto.FLOAT, [])])
    said = {"input": [tensor("x", "FP32", dims)], "output": [tensor("y", "FP32", dims)]}
    check_tensors(said, path)
    said["output"][0]["dims"] = [1, 2]
    with pytest.raises(InvalidConfigurationError, match=r"shape \[1, 2\] for output 'y'.*\[\]"):
        check_tensors(said, path)


def test_a_scalar_beside_batched_inputs_is_taken_and_an_output_is_not(tmp_path: Path) -> None:
    inputs = [("x", TensorProto.FLOAT, ["b", 4]), ("level", TensorProto.FLOAT, [])]
    both = config(tensor(*X), tensor("level", "FP32", [1]))
    check_tensors(both, saved(tmp_path, inputs))
    path = saved(tmp_path, inputs[::-1], [("y", TensorProto.FLOAT, [])])
    with pytest.raises(InvalidConfigurationError, match=r"output 'y' has shape \[\]"):
        check_tensors({**both, "output": [tensor("y", "FP32", [1])]}, path)


@pytest.mark.parametrize(("kind", "element"), [("STRING", "STRING"), ("BF16", "BFLOAT16")])
def test_types_are_compared_by_their_configuration_names(
    tmp_path: Path, kind: str, element: str
) -> None:
    number = getattr(TensorProto, element)
    path = saved(tmp_path, [("x", number, ["b", 4])], [("y", number, ["b", 4])])
    check_tensors(config(tensor("x", kind, [4]), y=tensor("y", kind, [4])), path)
    with pytest.raises(InvalidConfigurationError, match=f"model provides TYPE_{kind}"):
        check_tensors(config(tensor("x", kind, [4])), path)


def test_controls_and_states_are_inputs_that_no_client_gives(tmp_path: Path) -> None:
    inputs = [
        ("x", TensorProto.FLOAT, ["b", 4]),
        ("start", TensorProto.INT32, ["b", 1]),
        ("before", TensorProto.FLOAT, ["b", 4]),
    ]
    start = {"name": "start", "control": [{"int32_false_true": [0, 1]}]}
    other = {"name": "ready", "control": [{"fp32_false_true": [0, 1]}]}
    state = {"input_name": "before", "output_name": "after"}
    batching = {"control_input": [start, other], "state": [state]}
    path = saved(tmp_path, inputs)
    check_tensors(config(sequence_batching=batching), path)
    with pytest.raises(InvalidConfigurationError, match="lacks 'before'"):
        check_tensors(config(sequence_batching={**batching, "state": []}), path)
    start["control"] = [{"bool_false_true": [False, True]}]
    with pytest.raises(
        InvalidConfigurationError,
        match="TYPE_BOOL for sequence control 'start', model provides TYPE_INT32",
    ):
        check_tensors(config(sequence_batching=batching), path)


def test_an_output_that_the_file_leaves_open_is_compared_with_what_is_inferred(
    tmp_path: Path,
) -> None:
    path = saved(tmp_path, outputs=[("y", TensorProto.FLOAT, None)])
    check_tensors(config(), path)
    with pytest.raises(InvalidConfigurationError, match=r"shape \[-1, 5\].*provides \[-1, 4\]"):
        check_tensors(config(y=tensor("y", "FP32", [5])), path)
    model = onnx.load(path)
    model.graph.output[0].ClearField("type")
    onnx.save(model, path)
    with pytest.raises(InvalidConfigurationError, match=r"TYPE_INT8 .*provides TYPE_FP32"):
        check_tensors(config(y=tensor("y", "INT8", [4])), path)


def test_an_output_of_variable_size_is_not_said_to_be_fixed(tmp_path: Path) -> None:
    either = [("x", TensorProto.FLOAT, ["b", "n"])]
    path = saved(tmp_path, either, [("y", TensorProto.FLOAT, ["b", "m"])])
    with pytest.raises(InvalidConfigurationError, match=r"\[-1, 4\].*output 'y'.*\[-1, -1\]"):
        check_tensors(config(), path)
    check_tensors(config(y=tensor("y", "FP32", [-1])), path)


def test_an_output_whose_size_nobody_knows_is_as_the_entry_says(tmp_path: Path) -> None:
    path = saved(tmp_path, outputs=[("y", TensorProto.FLOAT, ["b", "m"])])
    model = onnx.load(path)
    model.graph.node[0].op_type = "QuickGelu"  # of which onnx knows no types
    model.graph.node[0].domain = "com.microsoft"
    onnx.save(model, path)
    for size in (4, -1):
        check_tensors(config(y=tensor("y", "FP32", [size])), path)


def test_an_entry_that_was_not_completed_contradicts_nothing(tmp_path: Path) -> None:
    """As on a server without auto-completion."""
    check_tensors({}, saved(tmp_path))
    check_tensors({"input": [], "output": [tensor("y", "FP32", [-1, 4])]}, saved(tmp_path))
