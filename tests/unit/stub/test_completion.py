"""Completing a configuration: what the model says, and only where the entry says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.pipelines import NetworkSignature, TensorType
from brisk.protocol.datatypes import DATATYPES
from brisk.stub.config.completion import DEFAULT_MAX_BATCH_SIZE, ConfigCompletion, complete

Shape = tuple[int | None, ...] | None


def tensor(shape: Shape, datatype: str = "FP32") -> TensorType:
    return TensorType(DATATYPES[datatype].element_name, shape)


def signature(input_shape: Shape, output_shape: Shape) -> NetworkSignature:
    return NetworkSignature({"x": tensor(input_shape)}, {"y": tensor(output_shape)})


BATCHABLE = signature((None, 3), (None,))
FIXED = signature((1, 3), (1, 5))


def entry(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "data_type": "TYPE_FP32", **fields}


def test_a_model_of_symbolic_first_sizes_is_batched() -> None:
    completion = complete(BATCHABLE, {})
    assert completion.max_batch_size == DEFAULT_MAX_BATCH_SIZE
    assert completion.has_dynamic_batching
    assert completion.inputs == (entry("x", dims=[3]),)
    assert completion.outputs == (entry("y", dims=[1], reshape={"shape": []}),)


def test_a_model_of_fixed_sizes_is_not_batched() -> None:
    completion = complete(FIXED, {})
    assert (completion.max_batch_size, completion.has_dynamic_batching) == (0, False)
    assert completion.inputs == (entry("x", dims=[1, 3]),)


@pytest.mark.parametrize("shapes", [((None, 3), (1, 5)), ((1, 3), (None, 5)), ((None,), ())])
def test_one_fixed_first_size_is_enough_not_to_batch(shapes: tuple[Shape, Shape]) -> None:
    assert complete(signature(*shapes), {}).max_batch_size == 0


def test_a_scalar_is_told_as_one_element_and_not_reshaped_without_a_batch() -> None:
    completion = complete(signature((), ()), {})  # Triton refuses an empty shape there
    assert completion.inputs == (entry("x", dims=[1]),)
    assert completion.outputs == (entry("y", dims=[1]),)


@pytest.mark.parametrize(("said", "is_joined"), [(32, True), (1, False)])
def test_a_batch_size_that_is_said_is_kept_and_requests_are_joined_up_to_it(
    said: int, is_joined: bool
) -> None:
    completion = complete(BATCHABLE, {"max_batch_size": said})
    assert (completion.max_batch_size, completion.has_dynamic_batching) == (said, is_joined)
    assert completion.inputs == (entry("x", dims=[3]),)


def test_nothing_is_added_where_both_sides_are_said() -> None:
    said = {"input": [entry("x", dims=[3])], "output": [entry("y", dims=[1])]}
    assert complete(BATCHABLE, {**said, "max_batch_size": 8}) == ConfigCompletion(8, False, (), ())
    assert complete(BATCHABLE, said) == ConfigCompletion(0, False, (), ())


ROWS = signature((None, 3), (None, 5))


@pytest.mark.parametrize(
    "said",
    [
        {"input": [entry("x", dims=[3])]},
        {"output": [entry("y", dims=[5], label_filename="labels.txt")]},
        {"output": [entry("y", dims=[1, 5], reshape={"shape": [5]})]},
    ],
)
def test_one_side_without_the_batch_is_completed_as_if_it_were_not_there(
    said: dict[str, Any],
) -> None:
    completion, whole = complete(ROWS, said), complete(ROWS, {})
    assert completion.max_batch_size == DEFAULT_MAX_BATCH_SIZE
    assert completion.has_dynamic_batching
    assert completion.inputs == (() if "input" in said else whole.inputs)
    assert completion.outputs == (() if "output" in said else whole.outputs)


@pytest.mark.parametrize(
    "said", [{"input": [entry("x", dims=["-1", 3])]}, {"output": [entry("y", dims=[-1, 5])]}]
)
def test_one_side_with_all_of_the_models_sizes_is_completed_without_a_batch(
    said: dict[str, Any],
) -> None:
    completion = complete(ROWS, said)
    assert (completion.max_batch_size, completion.has_dynamic_batching) == (0, False)
    missing = completion.outputs if "input" in said else completion.inputs
    assert missing[0]["dims"] == ([-1, 5] if "input" in said else [-1, 3])


def test_an_output_whose_first_size_is_another_one_of_the_inputs_is_no_batch() -> None:
    turned = NetworkSignature(ROWS.inputs, ROWS.outputs, {"y": ("input", "batch")})
    assert complete(turned, {}).max_batch_size == 0
    assert complete(turned, {"max_batch_size": 8}).max_batch_size == 8  # the entry says so
    unknown = NetworkSignature(ROWS.inputs, ROWS.outputs, {"y": (None, "input")})
    assert complete(unknown, {}).max_batch_size == DEFAULT_MAX_BATCH_SIZE


def test_optional_inputs_are_neither_completed_nor_batched() -> None:
    optional = TensorType("float32", (3,), is_optional=True)
    both = NetworkSignature({**ROWS.inputs, "bias": optional}, ROWS.outputs)
    completion = complete(both, {})
    assert completion.max_batch_size == DEFAULT_MAX_BATCH_SIZE
    assert completion.inputs == (entry("x", dims=[3]),)


def test_a_batch_size_that_the_model_cannot_have_is_refused_by_name() -> None:
    with pytest.raises(
        InvalidConfigurationError, match=r"max_batch_size is 8, but 'x' .*\[1, 3\]"
    ):
        complete(FIXED, {"max_batch_size": 8})


def test_a_batch_size_for_a_model_without_tensors_is_refused_too() -> None:
    with pytest.raises(InvalidConfigurationError, match="max_batch_size is 8"):
        complete(NetworkSignature({}, {}), {"max_batch_size": 8})


@pytest.mark.parametrize("scheduler", ["dynamic_batching", "sequence_batching"])
def test_a_scheduler_that_is_said_is_left_alone(scheduler: str) -> None:
    completion = complete(BATCHABLE, {scheduler: {}})
    assert completion.max_batch_size == DEFAULT_MAX_BATCH_SIZE
    assert not completion.has_dynamic_batching


def test_nothing_is_added_to_inputs_that_are_said() -> None:
    """That one is missing is the load's to refuse."""
    both = NetworkSignature({"a": tensor((1,)), "b": tensor((2,))}, {"y": tensor((3,))})
    completion = complete(both, {"input": [entry("a", dims=[1])]})
    assert completion.inputs == ()
    assert completion.outputs == (entry("y", dims=[3]),)


def test_outputs_may_be_left_out_on_purpose() -> None:
    both = NetworkSignature({"x": tensor((1,))}, {"y": tensor((1,)), "z": tensor((1,))})
    assert complete(both, {"output": [entry("z", dims=[1])]}).outputs == ()


def test_an_unknown_rank_must_be_said() -> None:
    with pytest.raises(InvalidConfigurationError, match="rank of 'x': give its dims"):
        complete(signature(None, (1,)), {})
    said = {"input": [entry("x", dims=[-1])]}
    assert complete(signature(None, (1,)), said).inputs == ()
    untyped = NetworkSignature({"x": tensor((1,))}, {"y": TensorType(None, None)})
    with pytest.raises(InvalidConfigurationError, match="type of 'y': give its data_type and"):
        complete(untyped, {})


@pytest.mark.parametrize("datatype", DATATYPES)
def test_datatypes_have_their_configuration_name(datatype: str) -> None:
    both = NetworkSignature({"x": tensor((1,), datatype)}, {"y": tensor((1,))})
    expected = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    assert complete(both, {}).inputs[0]["data_type"] == expected
