"""An entry's ``sequence_batching``: its controls and implicit states, as settings of the worker.

Triton itself adds control tensors to requests. It also adds states, but does not see what a Python
backend has answered, so these always have their first value. So states are removed from requests,
and the worker keeps them (``brisk.runtime.models.sequences``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brisk.errors import BriskError, InvalidConfigurationError, InvalidModelError
from brisk.paths import find_inside
from brisk.protocol.datatypes import (
    BY_ELEMENT_NAME,
    Datatype,
    config_name,
    from_config_name,
)
from brisk.protocol.entry_files import is_pipeline
from brisk.protocol.records import StateForm
from brisk.protocol.signature import NetworkSignature, TensorType
from brisk.stub.config.signature import dims_of, stated_signature

STATE_DIRECTORY = "initial_state"
"""The directory of an entry with the files that ``data_file`` names."""

_DEFAULT_IDLE_US = 1_000_000
_CORRELATION = "CONTROL_SEQUENCE_CORRID"


class SequenceSettings(NamedTuple):
    """The settings for the worker that follow from an entry's ``sequence_batching``."""

    states: tuple[StateForm, ...]
    left_out: frozenset[str]
    """The inputs that Triton adds and that are not sent to the worker."""
    correlation_input: str | None
    """The control input for the correlation id; None if there is none."""
    max_sequences: int
    """The most sequences of one instance that Triton's scheduler keeps alive at a time."""
    idle_ns: int


def added_inputs(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the model's inputs that no client sends: controls and states."""
    batching = config.get("sequence_batching") or {}
    controls = {control.get("name", "") for control in batching.get("control_input", ())}
    states = {state.get("input_name", "") for state in batching.get("state", ())}
    return frozenset(controls | states)


def state_outputs(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the model's outputs that are states; clients get them only if ``output`` names
    them."""
    batching = config.get("sequence_batching") or {}
    return frozenset(state.get("output_name", "") for state in batching.get("state", ()))


def read_sequences(
    config: Mapping[str, Any], directory: Path, model_path: Path
) -> SequenceSettings:
    """Return the settings of the entry in ``directory``, checked against its model.

    Raises InvalidConfigurationError that names what is wrong or unsupported, InvalidModelError if
    the model cannot be read.
    """
    batching = config["sequence_batching"]
    if batching.get("iterative_sequence") or batching.get("generative_sequence"):
        raise InvalidConfigurationError("sequence_batching: iterative_sequence is not served")
    configured = batching.get("state", ())
    if configured and is_pipeline(model_path):
        raise InvalidConfigurationError(
            "sequence_batching: a pipeline cannot have states; they are served for single models"
        )
    signature = stated_signature(model_path)
    max_batch_size = int(config.get("max_batch_size", 0))
    named = {tensor.get("name") for tensor in config.get("input", ())}
    states: list[StateForm] = []
    for state in configured:
        text = f"sequence_batching: state '{state.get('input_name', '')}'"
        try:
            form = _state(state, signature, max_batch_size > 0, directory)
        except BriskError as error:
            raise InvalidConfigurationError(f"{text}: {error}") from error
        if form.input in named or any(form.input == other.input for other in states):
            raise InvalidConfigurationError(f"{text}: '{form.input}' is another input as well")
        if any(form.output == other.output for other in states):
            raise InvalidConfigurationError(f"{text}: '{form.output}' is of another state, too")
        states.append(form)
    controls = {control["name"] for control in batching.get("control_input", ())}
    candidates = int((batching.get("oldest") or {}).get("max_candidate_sequences", 0))
    idle_us = int(batching.get("max_sequence_idle_microseconds", 0)) or _DEFAULT_IDLE_US
    return SequenceSettings(
        states=tuple(states),
        left_out=frozenset(state.input for state in states) | (controls - signature.inputs.keys()),
        correlation_input=_correlation_input(batching),
        max_sequences=candidates or max(1, max_batch_size),
        idle_ns=min(idle_us * 1000, 2**62),
    )


def _correlation_input(batching: Mapping[str, Any]) -> str | None:
    for tensor in batching.get("control_input", ()):
        for control in tensor.get("control", ()):
            if control.get("kind") != _CORRELATION:
                continue
            if control.get("data_type") == "TYPE_STRING":
                raise InvalidConfigurationError(
                    f"sequence_batching: {_CORRELATION} of TYPE_STRING in '{tensor['name']}': "
                    "Triton's Python backend cannot hand such a tensor on; expected TYPE_UINT64, "
                    "TYPE_INT64, TYPE_UINT32 or TYPE_INT32, or no such control, where correlation "
                    "ids may be strings"
                )
            return str(tensor["name"])
    return None


def _state(
    state: Mapping[str, Any], signature: NetworkSignature, is_batched: bool, directory: Path
) -> StateForm:
    """Return one state, checked against the model. Raises InvalidConfigurationError that says what
    is wrong with it."""
    datatype = from_config_name(state.get("data_type", ""))
    if datatype is None:
        raise InvalidConfigurationError(f"its data_type {state.get('data_type')!r} is unknown")
    dims = [int(size) for size in state.get("dims", ())]
    for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        name = state.get(f"{kind}_name", "")
        if name not in tensors:
            raise InvalidConfigurationError(
                f"{kind}_name '{name}' is no {kind} of the model; it has {', '.join(tensors)}"
            )
        words = f"the model's {kind} '{name}'"
        _check(words, tensors[name], datatype, [-1, *dims] if is_batched else dims)
    shape, file = _first_value(state, datatype, dims, directory)
    whole = (1, *shape) if is_batched else shape
    return StateForm(state["input_name"], state["output_name"], datatype.name, whole, file)


def _check(words: str, tensor: TensorType, datatype: Datatype, dims: list[int]) -> None:
    """Raise InvalidConfigurationError unless the model's tensor has the configured type and
    sizes."""
    if tensor.element not in (None, datatype.element_name):
        raise InvalidConfigurationError(
            f"{words} is {config_name(BY_ELEMENT_NAME[tensor.element])}, "
            f"data_type says {config_name(datatype)}"
        )
    shape = tensor.shape
    if shape is None or (shape == () and dims == [1]):
        return
    fits = len(shape) == len(dims) and all(
        size is None or configured in (-1, size)
        for size, configured in zip(shape, dims, strict=True)
    )
    if not fits:
        raise InvalidConfigurationError(
            f"{words} has shape {dims_of(shape)}, "
            f"dims (with the batch, where there is one) say {dims}"
        )


def _first_value(
    state: Mapping[str, Any], datatype: Datatype, dims: list[int], directory: Path
) -> tuple[tuple[int, ...], str]:
    """Return the shape without the batch, and the file (empty for zeros), of a first state.

    Without an ``initial_state``, when Triton leaves the value undefined, it is zeros, with size 1
    for each variable size.
    """
    values = state.get("initial_state", ())
    if not values:
        return tuple(1 if size < 0 else size for size in dims), ""
    if len(values) > 1:
        raise InvalidConfigurationError(f"it has {len(values)} times an initial_state, expected 1")
    (value,) = values
    if value.get("data_type") != state.get("data_type"):
        raise InvalidConfigurationError(
            f"initial_state is {value.get('data_type')}, the state {state.get('data_type')}"
        )
    shape = tuple(int(size) for size in value.get("dims", ()))
    fits = len(shape) == len(dims) and all(
        own_size >= 0 and size in (-1, own_size)
        for size, own_size in zip(dims, shape, strict=True)
    )
    if not fits:
        raise InvalidConfigurationError(
            f"initial_state has dims {list(shape)}, which are no sizes for dims {dims}"
        )
    name = value.get("data_file", "")
    if not name:
        if not value.get("zero_data"):
            raise InvalidConfigurationError("initial_state has neither zero_data nor data_file")
        return shape, ""
    return shape, str(_state_file(directory, name, datatype, shape))


def _state_file(directory: Path, name: str, datatype: Datatype, shape: tuple[int, ...]) -> Path:
    """Return the path of a state's file, which must be in the entry's folder of states even with
    links followed. Raises InvalidConfigurationError."""
    folder = directory / STATE_DIRECTORY
    try:
        file = find_inside(folder, name, "data_file")
    except InvalidModelError as error:
        raise InvalidConfigurationError(str(error)) from error
    if file is None or not file.is_file():
        raise InvalidConfigurationError(f"data_file '{name}' is no regular file of {folder}")
    size = file.stat().st_size
    expected_size = math.prod(shape) * datatype.item_bytes
    if expected_size != size and datatype.item_bytes:
        raise InvalidConfigurationError(
            f"data_file '{name}' has {size} bytes, "
            f"{config_name(datatype)} {list(shape)} takes {expected_size}"
        )
    return file
