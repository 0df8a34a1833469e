"""``sequence_batching`` of an entry: what is read of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from brisk.errors import BriskError, InvalidConfigurationError, InvalidRequestError
from brisk.protocol.records import SequenceStep, StateForm
from brisk.stub.config.completion import complete
from brisk.stub.config.entry import read_entry
from brisk.stub.config.sequences import SequenceSettings, read_sequences
from brisk.stub.config.signature import read_signature
from brisk.stub.sequence_steps import Steps
from support.server.entries import make_model, write_entry
from support.traced_stub.stub import Tensor

FLOAT = TensorProto.FLOAT

STATE = {"input_name": "s", "output_name": "t", "data_type": "TYPE_FP32", "dims": ["-1", "2"]}
CONTROLS = [
    {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}]},
    {
        "name": "CORRID",
        "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_INT32"}],
    },
]


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    """A folder with a model of ``x``, ``s``, ``START`` and ``y``, ``t``."""
    directory = write_entry(
        tmp_path,
        "entry",
        make_model(
            [
                helper.make_node("Add", ["x", "START"], ["y"]),
                helper.make_node("Concat", ["s", "s"], ["t"], axis=1),
            ],
            [("x", FLOAT, ["n", 2]), ("s", FLOAT, ["n", "m", 2]), ("START", FLOAT, ["n", 1])],
            [("y", FLOAT, ["n", 2]), ("t", FLOAT, ["n", "k", 2])],
        ),
    )
    (directory / "initial_state").mkdir()
    return directory


def read(entry: Path, state: dict[str, Any] | None = None, **batching: Any) -> SequenceSettings:
    states = {"state": [{**STATE, **state}]} if state is not None else {}
    config = {"max_batch_size": 4, "sequence_batching": {**states, **batching}}
    settings = read_sequences(config, entry, entry / "1" / "model.onnx")
    assert settings is not None
    return settings


def first(**fields: Any) -> dict[str, Any]:
    value = {"name": "f", "data_type": "TYPE_FP32", "dims": ["3", "2"], **fields}
    return {"initial_state": [value]}


def test_controls_that_the_model_lacks_and_states_are_left_out_of_requests(entry: Path) -> None:
    oldest = {"max_candidate_sequences": 9}
    settings = read(
        entry,
        {},
        control_input=CONTROLS,
        oldest=oldest,
        max_sequence_idle_microseconds="5000",
    )
    assert settings == SequenceSettings(
        (StateForm("s", "t", "FP32", (1, 1, 2), ""),),
        frozenset({"s", "CORRID"}),
        "CORRID",
        9,
        5_000_000,
    )


def test_a_first_state_has_sizes_of_its_own(entry: Path) -> None:
    (state,) = read(entry, first(zero_data=True)).states
    assert (state.shape, state.file) == ((1, 3, 2), "")
    file = entry / "initial_state" / "f"
    file.write_bytes(bytes(24))
    (entry / "initial_state" / "link").symlink_to("f")
    for name in ("f", "link"):
        (state,) = read(entry, first(data_file=name)).states
        assert (state.shape, Path(state.file)) == ((1, 3, 2), file.parent / name)


def test_a_first_state_s_file_has_to_lie_in_the_entry(entry: Path) -> None:
    outside = entry.parent / "outside"
    outside.write_bytes(bytes(24))
    (entry / "initial_state" / "link").symlink_to(outside)
    (entry / "initial_state" / "folder").mkdir()
    (entry / "initial_state" / "short").write_bytes(bytes(20))
    for name, complaint in {
        "../../outside": "outside the model's folder",
        str(outside): "outside the model's folder",
        "link": "outside the model's folder",
        "/dev/zero": "outside the model's folder",
        "folder": "is no regular file",
        "short": r"has 20 bytes, TYPE_FP32 \[3, 2\] takes 24",
        "none": "is no regular file",
        "nul\0": "holds a NUL character",
    }.items():
        with pytest.raises(InvalidConfigurationError, match=f"state 's': .*{complaint}"):
            read(entry, first(data_file=name))


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({"input_name": "z"}, "input_name 'z' is no input of the model"),
        ({"output_name": "z"}, "output_name 'z' is no output of the model"),
        ({"data_type": "TYPE_INT64"}, "is TYPE_FP32, data_type says TYPE_INT64"),
        ({"data_type": "TYPE_ODD"}, "data_type 'TYPE_ODD' is unknown"),
        ({"dims": ["-1", "3"]}, r"has shape \[-1, -1, 2\], dims .* say \[-1, -1, 3\]"),
        ({"dims": ["2"]}, r"say \[-1, 2\]"),
        ({"input_name": "x", "dims": ["2"], "output_name": "y"}, "'x' is another input as well"),
        (first(dims=["3"]), r"initial_state has dims \[3\]"),
        (first(dims=["-1", "2"], zero_data=True), r"initial_state has dims \[-1, 2\]"),
        (first(data_type="TYPE_INT32", zero_data=True), "initial_state is TYPE_INT32"),
        (first(), "neither zero_data nor data_file"),
    ],
)
def test_states_that_do_not_fit_are_refused(
    entry: Path, state: dict[str, Any], complaint: str
) -> None:
    config = {
        "max_batch_size": 4,
        "input": [{"name": "x"}],
        "sequence_batching": {"state": [{**STATE, **state}]},
    }
    with pytest.raises(InvalidConfigurationError, match=complaint):
        read_sequences(config, entry, entry / "1" / "model.onnx")


def test_what_is_not_served_is_refused(entry: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match="iterative_sequence is not served"):
        read(entry, iterative_sequence=True)
    control = {"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_STRING"}
    with pytest.raises(InvalidConfigurationError, match="CORRID of TYPE_STRING in 'C'"):
        read(entry, control_input=[{"name": "C", "control": [control]}])
    pipeline = entry / "1" / "pipeline.json"
    pipeline.write_text("{}")
    with pytest.raises(InvalidConfigurationError, match="a pipeline cannot have states"):
        read_sequences({"sequence_batching": {"state": [STATE]}}, entry, pipeline)


def test_an_entry_tells_its_worker(entry: Path) -> None:
    config = {"max_batch_size": 4, "sequence_batching": {"direct": {}, "state": [STATE]}}
    described = read_entry(
        {
            "model_name": "m",
            "model_version": "1",
            "model_repository": str(entry),
            "model_config": json.dumps(config),
        }
    ).model
    assert described.states == (StateForm("s", "t", "FP32", (1, 1, 2), ""),)
    assert (described.max_sequences, described.sequence_idle_ns) == (4, 1_000_000_000)
    assert described.batching
    assert not described.takes_offers


@pytest.mark.parametrize(("dims", "batch"), [(["-1", "2"], 4), (["-1", "-1", "2"], 0)])
def test_completion_leaves_controls_and_states_to_triton(
    entry: Path, dims: list[str], batch: int
) -> None:
    config = {"sequence_batching": {"control_input": CONTROLS, "state": [{**STATE, "dims": dims}]}}
    completion = complete(read_signature(entry / "1" / "model.onnx"), config)
    assert [tensor["name"] for tensor in completion.inputs] == ["x"]
    assert [tensor["name"] for tensor in completion.outputs] == ["y"]
    assert completion.max_batch_size == batch
    assert not completion.has_dynamic_batching


class FakeRequest:
    """As much of Triton's as a step takes."""

    def __init__(self, correlation_id: int | str, flags: int = 0, control: int = 0) -> None:
        self._values = correlation_id, flags
        self._control = np.array([[control]], np.int32)

    def correlation_id(self) -> int | str:
        return self._values[0]

    def flags(self) -> int:
        return self._values[1]

    def inputs(self) -> list[Any]:
        return [Tensor("CORRID", self._control)]


def settings(correlation_input: str | None = None) -> SequenceSettings:
    state = StateForm("s", "t", "FP32", (1, 2), "")
    return SequenceSettings((state,), frozenset({"s"}), correlation_input, 4, 1)


def test_numbers_and_strings_are_different_sequences() -> None:
    steps = Steps(settings())
    with steps.step(FakeRequest(7, 1)) as step:
        assert step == SequenceStep("7", True, False)
    with steps.step(FakeRequest("7", 2)) as step:
        assert step == SequenceStep('"7"', False, True)


@pytest.mark.parametrize(("key", "control"), [("abc", 3), (2**40, 0), (5, 6)])
def test_a_correlation_id_has_to_be_its_control_s_value(key: int | str, control: int) -> None:
    steps = Steps(settings("CORRID"))
    with (
        pytest.raises(InvalidRequestError, match=r"is no value of control 'CORRID'.*int32"),
        steps.step(FakeRequest(key, 1, control)),
    ):
        pass
    with steps.step(FakeRequest(6, 1, 6)):
        pass


def test_a_sequence_whose_start_was_refused_has_not_begun() -> None:
    steps = Steps(settings())
    with steps.step(FakeRequest(7, 1)):
        pass
    with pytest.raises(InvalidRequestError), steps.step(FakeRequest(7, 1)):
        raise InvalidRequestError("an input is wrong")
    for _ in range(2):
        with (
            pytest.raises(BriskError, match="sequence 7 has not begun"),
            steps.step(FakeRequest(7)),
        ):
            pass
    with steps.step(FakeRequest(7, 1)):
        pass
    with steps.step(FakeRequest(7)):
        pass
