"""Completion of a configuration from the ONNX file, like Triton's ONNX Runtime backend's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brisk.errors import InvalidConfigurationError
from brisk.protocol.datatypes import BY_ELEMENT_NAME, config_name
from brisk.protocol.signature import NetworkSignature, TensorType
from brisk.stub.config.sequences import added_inputs, state_outputs
from brisk.stub.config.signature import dims_of, model_dims

_OPTION = "--backend-config"
_NAMES = ("", "onnxruntime", "brisk")
"""The backends whose defaults apply, by ascending precedence: all backends, that of ONNX models,
Brisk."""
_SETTING = "default-max-batch-size"
DEFAULT_MAX_BATCH_SIZE = 4
"""Triton's own default."""


@dataclass(frozen=True, slots=True)
class ConfigCompletion:
    """The fields to add to a configuration. ``inputs`` and ``outputs`` have the form of
    ``config.pbtxt``: ``name``, ``data_type``, ``dims``, and ``reshape`` if the model's sizes
    differ from ``dims``."""

    max_batch_size: int
    has_dynamic_batching: bool
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]


def complete(
    signature: NetworkSignature,
    config: Mapping[str, Any],
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
) -> ConfigCompletion:
    """Return the missing ``max_batch_size``, inputs, outputs and scheduler of a configuration.

    Nothing is added if the entry names both inputs and outputs, and nothing to a side of which it
    names one. The batch dimension, with ``default_max_batch_size``, is assumed if every tensor's
    first size is dynamic, none is known to be another size than the inputs' first, and the entry
    does not say otherwise. The controls and states of ``sequence_batching`` are no inputs or
    outputs of clients. Raises InvalidConfigurationError if the model cannot be batched as the
    entry says, or does not state a tensor's type or rank.
    """
    configured = int(config.get("max_batch_size", 0))
    if is_whole(config):
        return ConfigCompletion(configured, False, (), ())
    needed = {name: kind for name, kind in signature.inputs.items() if not kind.is_optional}
    tensors = (*needed.items(), *signature.outputs.items())
    fixed = next(
        ((name, kind) for name, kind in tensors if not kind.shape or kind.shape[0] is not None),
        None,
    )
    if configured > 0 and (fixed is not None or not tensors):
        reason = "the model has no tensors"
        if fixed is not None:
            name, kind = fixed
            shape = "no known rank" if kind.shape is None else f"shape {dims_of(kind.shape)}"
            reason = f"'{name}' of the model has {shape}, whose first size is not dynamic"
        raise InvalidConfigurationError(f"max_batch_size is {configured}, but {reason}")
    is_batched = bool(tensors) and fixed is None and not _is_unbatched(signature, config)
    max_batch_size = configured or (default_max_batch_size if is_batched else 0)
    added, states = added_inputs(config), state_outputs(config)
    has_scheduler = "dynamic_batching" in config or "sequence_batching" in config
    return ConfigCompletion(
        max_batch_size=max_batch_size,
        has_dynamic_batching=max_batch_size > 1 and not has_scheduler,
        inputs=tuple(
            _describe(name, kind, max_batch_size)
            for name, kind in needed.items()
            if not config.get("input") and name not in added
        ),
        outputs=tuple(
            _describe(name, kind, max_batch_size)
            for name, kind in signature.outputs.items()
            if not config.get("output")  # an entry may leave outputs out on purpose
            and name not in states
        ),
    )


def is_whole(config: Mapping[str, Any]) -> bool:
    """Whether the configuration names inputs and outputs, so that it needs no completion."""
    return bool(config.get("input") and config.get("output"))


def _is_unbatched(signature: NetworkSignature, config: Mapping[str, Any]) -> bool:
    """Whether an output's first size is not the batch, or the entry gives some tensor as many
    sizes as the model, so including the batch."""
    if any(origins[:1] == ("input",) for origins in signature.origins.values()):
        return True
    states = (config.get("sequence_batching") or {}).get("state", ())
    said = (
        *(
            (signature.inputs, each.get("name"), model_dims(each))
            for each in config.get("input", ())
        ),
        *(
            (signature.outputs, each.get("name"), model_dims(each))
            for each in config.get("output", ())
        ),
        *((signature.inputs, each.get("input_name"), model_dims(each)) for each in states),
    )
    return any(
        name in tensors and len(tensors[name].shape or ()) == len(dims)
        for tensors, name, dims in said
    )


def _describe(name: str, kind: TensorType, max_batch_size: int) -> dict[str, Any]:
    """Return a model's tensor in the form of ``config.pbtxt``.

    A configuration has no tensors without sizes: such a tensor is ``[1]``, reshaped if batched.
    Raises InvalidConfigurationError if the model does not state its type or rank.
    """
    if kind.element is None or kind.shape is None:
        what, field = ("rank", "dims") if kind.element else ("type", "data_type and dims")
        raise InvalidConfigurationError(
            f"the model does not say the {what} of '{name}': give its {field} in config.pbtxt"
        )
    dims = dims_of(kind.shape[1:] if max_batch_size else kind.shape)
    described = {"name": name, "data_type": config_name(BY_ELEMENT_NAME[kind.element])}
    if dims:
        return {**described, "dims": dims}
    return {**described, "dims": [1], **({"reshape": {"shape": []}} if max_batch_size else {})}


def default_max_batch_size(command_line: Sequence[bytes]) -> int:
    """Return the ``max_batch_size`` that completion gives a model that can be batched.

    Triton passes this setting to its own backends, but not to those in Python. So it is read from
    ``command_line``, the server's: ``--backend-config=<name>,<setting>=<value>`` and, for all
    backends, ``--backend-config=<setting>=<value>``. Raises InvalidConfigurationError if it is no
    whole number.
    """
    said = dict(_settings(command_line))
    name = next((name for name in reversed(_NAMES) if name in said), None)
    if name is None:
        return DEFAULT_MAX_BATCH_SIZE
    text = said[name]
    if not text.isdecimal() or len(text) > 10 or int(text) > 2**31 - 1:
        raise InvalidConfigurationError(
            f"{_OPTION}={name + ',' if name else ''}{_SETTING} must be a whole number, "
            f"not '{text:.60}'"
        )
    return int(text)


def _settings(command_line: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    """Yield the backend's name and the value of each ``default-max-batch-size``, in order."""
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
