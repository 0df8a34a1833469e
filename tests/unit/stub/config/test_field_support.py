"""What an entry asks for and does not get: notices by field, refusals by consequence."""

from __future__ import annotations

from typing import Any

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.stub.config.field_support import IGNORED, REFUSED, check_fields, is_first_instance

PLAIN: dict[str, Any] = {
    "max_batch_size": 8,
    "input": [{"name": "x", "allow_ragged_batch": False, "optional": False}],
    "batch_input": [],
    "batch_output": [],
    "optimization": {
        "priority": "PRIORITY_DEFAULT",
        "input_pinned_memory": {"enable": True},
        "output_pinned_memory": {"enable": True},
        "gather_kernel_buffer_threshold": 0,
        "eager_batching": False,
    },
    "dynamic_batching": {
        "preferred_batch_size": [8],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "priority_queue_policy": {},
    },
    "instance_group": [
        {"name": "m", "kind": "KIND_CPU", "count": 1, "secondary_devices": [], "host_policy": ""}
    ],
    "cc_model_filenames": {},
    "model_operations": {"op_library_filename": []},
    "model_transaction_policy": {"decoupled": False},
}
"""As Triton 24.10 hands over an entry that says nothing of all this."""


def changed(**changes: Any) -> dict[str, Any]:
    return {**PLAIN, **changes}


def test_triton_s_defaults_ask_for_nothing() -> None:
    assert check_fields(PLAIN, "cpu") == ()
    assert check_fields({}, "cpu") == ()


def test_a_field_in_one_of_several_groups_is_seen() -> None:
    groups = [{"name": "a"}, {"name": "b", "rate_limiter": {"resources": [], "priority": 1}}]
    (notice,) = check_fields(changed(instance_group=groups), "cpu")
    assert (notice.field, notice.level) == ("instance_group.rate_limiter", "warning")


def test_pinned_memory_is_noticed_where_it_is_switched_off() -> None:
    off = {**PLAIN["optimization"], "input_pinned_memory": {"enable": False}}
    (notice,) = check_fields(changed(optimization=off), "cpu")
    assert notice.field == "optimization.input_pinned_memory"


def test_a_queue_delay_is_told_as_what_it_is() -> None:
    delayed = {**PLAIN["dynamic_batching"], "max_queue_delay_microseconds": 100}
    (notice,) = check_fields(changed(dynamic_batching=delayed), "cpu")
    assert str(notice).startswith("dynamic_batching.max_queue_delay_microseconds only delays: ")


def test_an_entry_whose_answers_triton_keeps_is_told_that_none_comes_early() -> None:
    (notice,) = check_fields(changed(response_cache={"enable": True}), "cpu")
    assert str(notice).startswith("response_cache.enable excludes early answers: ")
    assert check_fields(changed(response_cache={"enable": False}), "cpu") == ()


def test_a_warm_up_of_sequences_is_told_to_compute_nothing() -> None:
    warmed = changed(model_warmup=[{"name": "twice", "batch_size": 1}])
    assert check_fields(warmed, "cpu") == ()
    (notice,) = check_fields({**warmed, "sequence_batching": {}}, "cpu")
    assert (notice.field, notice.level) == ("model_warmup", "warning")


def test_every_refused_field_is_told_at_once() -> None:
    wrong = changed(
        batch_input=[{"kind": "BATCH_ELEMENT_COUNT"}],
        input=[{"name": "x"}, {"name": "y", "allow_ragged_batch": True}],
        model_transaction_policy={"decoupled": True},
    )
    with pytest.raises(InvalidConfigurationError) as caught:
        check_fields(wrong, "cpu")
    for field in set(REFUSED) - {"batch_output"}:
        caught.match(f"{field} is not supported: ")
    assert "batch_output" not in str(caught.value)


def test_files_by_compute_capability_are_refused_where_they_would_count() -> None:
    named = changed(cc_model_filenames={"7.5": "model75.onnx"})
    (notice,) = check_fields(named, "cpu")
    assert notice.field == "cc_model_filenames"
    with pytest.raises(InvalidConfigurationError, match="cc_model_filenames is not supported"):
        check_fields(named, "cuda:0")


def test_custom_operators_and_graph_levels_are_taken_on_every_device() -> None:
    asked = changed(
        model_operations={"op_library_filename": ["a.so"]}, optimization={"graph": {"level": 1}}
    )
    assert check_fields(asked, "cpu") == check_fields(asked, "cuda:0") == ()


def test_the_first_instance_alone_speaks_for_all() -> None:
    groups = [{"name": "m_0", "count": 2, "gpus": []}, {"name": "other", "count": 1}]
    config = changed(instance_group=groups)
    named = ("m_0_0", "m_0_1", "other_0")
    assert [is_first_instance(config, name) for name in named] == [True, False, False]
    on_gpus = changed(instance_group=[{"name": "m", "gpus": [1, 0]}])
    assert is_first_instance(on_gpus, "m_0_gpu1")
    assert not is_first_instance(on_gpus, "m_0_gpu0")
    assert is_first_instance({}, "m_0")


def test_no_field_is_both_refused_and_ignored() -> None:
    assert not set(REFUSED) & {notice.field for notice in IGNORED}
