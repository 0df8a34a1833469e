"""Completing a configuration from the ONNX file, as the ONNX Runtime backend does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brisk.errors import InvalidConfigurationError
from brisk.pipelines import NetworkSignature, TensorType
from brisk.protocol.datatypes import BY_ELEMENT_NAME, config_name
from brisk.stub.config.sequences import added_inputs, state_outputs
from brisk.stub.config.signature import dims_of

_OPTION = "--backend-config"
_NAMES = ("", "onnxruntime", "brisk")
"""Of backends, the one that wins last: everybody's, that of ONNX models, Brisk."""
_SETTING = "default-max-batch-size"
DEFAULT_MAX_BATCH_SIZE = 4
"""Triton's own."""


@dataclass(frozen=True, slots=True)
class ConfigCompletion:
    """What a configuration lacks. ``inputs`` and ``outputs`` in the form of ``config.pbtxt``."""

    max_batch_size: int
    has_dynamic_batching: bool
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]


def complete(
    signature: NetworkSignature,
    config: Mapping[str, Any],
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
) -> ConfigCompletion:
    """Fill in ``max_batch_size``, inputs, outputs and the scheduler, leaving what is said.

    The batch dimension is assumed where every tensor's first size is symbolic and the entry
    says nothing else, with ``default_max_batch_size``. What ``sequence_batching`` names, its
    controls and states, is no input or output of clients. Raises InvalidConfigurationError where
    the entry contradicts the model.
    """
    tensors = (*signature.inputs.items(), *signature.outputs.items())
    fixed = next(
        ((name, kind) for name, kind in tensors if not kind.shape or kind.shape[0] is not None),
        None,
    )
    batchable = bool(tensors) and fixed is None
    configured = int(config.get("max_batch_size", 0))
    if configured > 0 and not batchable:
        reason = "the model has no tensors"
        if fixed is not None:
            name, kind = fixed
            shape = dims_of(kind.shape or ())
            reason = f"'{name}' of the model has shape {shape}, whose first size is not dynamic"
        raise InvalidConfigurationError(f"max_batch_size is {configured}, but {reason}")
    said = bool(config.get("input")) or bool(config.get("output")) or _say_batch(config, signature)
    guessed = default_max_batch_size if batchable and not said else 0
    max_batch_size = configured or guessed
    added, states = added_inputs(config), state_outputs(config)
    described = added | {entry.get("name") for entry in config.get("input", ())}
    has_scheduler = "dynamic_batching" in config or "sequence_batching" in config
    return ConfigCompletion(
        max_batch_size=max_batch_size,
        has_dynamic_batching=max_batch_size > 1 and not configured and not has_scheduler,
        inputs=tuple(
            _describe(name, kind, max_batch_size)
            for name, kind in signature.inputs.items()
            if name not in described
        ),
        outputs=tuple(
            _describe(name, kind, max_batch_size)
            for name, kind in signature.outputs.items()
            if not config.get("output")  # an entry may leave outputs out on purpose
            and name not in states
        ),
    )


def _say_batch(config: Mapping[str, Any], signature: NetworkSignature) -> bool:
    """Whether the dims of a state are all sizes of the model's tensor, the batch included."""
    ranks = {name: len(kind.shape or ()) for name, kind in signature.inputs.items()}
    states = (config.get("sequence_batching") or {}).get("state", ())
    return any(
        ranks.get(state.get("input_name")) == len(state.get("dims", ())) for state in states
    )


def _describe(name: str, kind: TensorType, max_batch_size: int) -> dict[str, Any]:
    """Triton has no tensors of rank 0: a scalar is ``[1]``."""
    if kind.shape is None:
        raise InvalidConfigurationError(
            f"the model does not say the rank of '{name}': give its dims in config.pbtxt"
        )
    dims = dims_of(kind.shape[1:] if max_batch_size else kind.shape)
    datatype = BY_ELEMENT_NAME[kind.element or ""]
    return {"name": name, "data_type": config_name(datatype), "dims": dims or [1]}


def default_max_batch_size(command_line: Sequence[bytes]) -> int:
    """What ``max_batch_size`` is completed to where a model can be batched.

    Triton tells its own backends, none that is written in Python: ``command_line`` is the
    server's, with ``--backend-config=<name>,<setting>=<value>`` and, for all backends,
    ``--backend-config=<setting>=<value>``. Raises InvalidConfigurationError where it is no whole
    number.
    """
    said = dict(_settings(command_line))
    name = next((name for name in reversed(_NAMES) if name in said), None)
    if name is None:
        return DEFAULT_MAX_BATCH_SIZE
    text = said[name]
    if not text.isdecimal() or int(text) > 2**31 - 1:
        raise InvalidConfigurationError(
            f"{_OPTION}={name + ',' if name else ''}{_SETTING} must be a whole number, "
            f"not '{text:.60}'"
        )
    return int(text)


def _settings(command_line: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    """Backend's name and value of each ``default-max-batch-size``, in order."""
    arguments = iter(each.decode(errors="replace") for each in command_line)
    for argument in arguments:
        option, is_joined, text = argument.partition("=")
        if option != _OPTION:
            continue
        if not is_joined:
            text = next(arguments, "")
        name, is_named, rest = text.partition(",")
        setting, _, value = (rest if is_named else text).partition("=")
        if setting == _SETTING and (name in _NAMES or not is_named):
            yield (name if is_named else ""), value.strip()
