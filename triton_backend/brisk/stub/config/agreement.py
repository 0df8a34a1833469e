"""The check of a configuration against its model: names, datatypes and sizes of all tensors.

It follows Triton's ONNX Runtime backend (``ValidateInputs`` and ``ValidateOutputs``): an entry
that promises other tensors than its model has is not loaded, so that its working version goes on
serving.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brisk.errors import InvalidConfigurationError
from brisk.protocol.datatypes import BY_ELEMENT_NAME, config_name
from brisk.protocol.entry_files import is_pipeline
from brisk.protocol.signature import NetworkSignature, TensorType
from brisk.stub.config.sequences import added_inputs
from brisk.stub.config.signature import dims_of, infer_outputs, model_dims, stated_signature

_TYPE_OF_CONTROL = {
    "int32_false_true": "TYPE_INT32",
    "fp32_false_true": "TYPE_FP32",
    "bool_false_true": "TYPE_BOOL",
}
"""The type of a sequence control, by the field that states its values."""


def check_tensors(config: Mapping[str, Any], path: Path) -> None:
    """Raise InvalidConfigurationError with every contradiction, its two sides named.

    The configuration may leave out outputs and optional inputs, and input sizes may be variable on
    one side only. An output must have the model's own sizes. If the file does not state one, shape
    inference does; if that does not know it, the configuration's is accepted. Raises
    InvalidModelError if the model cannot be read.
    """
    signature = stated_signature(path)
    if not is_pipeline(path) and _says_more(config, signature):
        signature = infer_outputs(path, signature)
    if problems := [*_of_inputs(config, signature), *_of_outputs(config, signature)]:
        raise InvalidConfigurationError("; ".join(problems))


def _says_more(config: Mapping[str, Any], signature: NetworkSignature) -> bool:
    """Whether the configuration states a type or size of an output that the file leaves open."""
    for tensor in config.get("output", ()):
        kind = signature.outputs.get(tensor.get("name", ""))
        if kind is None:
            continue
        if kind.element is None or kind.shape is None:
            return True
        sizes = _whole(config, tensor)
        pairs = zip(kind.shape, sizes, strict=False)
        if len(kind.shape) == len(sizes) and any(a is None and b >= 0 for a, b in pairs):
            return True
    return False


def _of_inputs(config: Mapping[str, Any], signature: NetworkSignature) -> Iterator[str]:
    inputs = config.get("input", ())
    for tensor in inputs:
        if tensor["name"] in signature.inputs:
            kind = signature.inputs[tensor["name"]]
            yield from _compared(config, f"input '{tensor['name']}'", tensor, kind)
        else:
            yield _unexpected("input", tensor, signature.inputs)
    for control in _controls(config):
        if control["name"] in signature.inputs:  # else the model does not read it
            kind = signature.inputs[control["name"]]
            yield from _compared(config, f"sequence control '{control['name']}'", control, kind)
    provided = added_inputs(config) | {tensor["name"] for tensor in inputs}
    needed = [name for name, kind in signature.inputs.items() if not kind.is_optional]
    missing = [name for name in needed if name not in provided]
    if inputs and missing:  # one that names no input at all, uncompleted, promises nothing
        kinds = [(name, signature.inputs[name]) for name in missing]
        lacking = (f"'{name}' ({_datatype(kind)} {_shape(kind)})" for name, kind in kinds)
        yield f"the configuration lacks {', '.join(lacking)}, which the model needs"


def _controls(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the controls whose type is known, as inputs: Triton gives each as one element."""
    for tensor in (config.get("sequence_batching") or {}).get("control_input", ()):
        for control in tensor.get("control", ()):
            says = (kind for field, kind in _TYPE_OF_CONTROL.items() if control.get(field))
            kind = next(says, control.get("data_type", "TYPE_INVALID"))
            if kind != "TYPE_INVALID":
                yield {"name": tensor["name"], "data_type": kind, "dims": [1]}


def _of_outputs(config: Mapping[str, Any], signature: NetworkSignature) -> Iterator[str]:
    for tensor in config.get("output", ()):
        name = tensor["name"]
        if name not in signature.outputs:
            yield _unexpected("output", tensor, signature.outputs)
            continue
        free = [origin is not None for origin in signature.origins.get(name, ())]
        kind = signature.outputs[name]
        yield from _compared(config, f"output '{name}'", tensor, kind, free)


def _unexpected(side: str, tensor: Mapping[str, Any], known: Mapping[str, TensorType]) -> str:
    import difflib  # not needed where all is right

    needed = [name for name, kind in known.items() if not kind.is_optional]
    optional = len(known) - len(needed)
    others = f", and {optional} whose values are in its file" if optional else ""
    near = difflib.get_close_matches(tensor["name"], needed, n=1) or difflib.get_close_matches(
        tensor["name"], known, n=1
    )
    guess = f"; did you mean '{near[0]}'?" if near else ""
    return (
        f"unexpected {side} '{tensor['name']}' in the configuration, the model's {side}s are "
        f"{', '.join(map(repr, needed)) or 'none'}{others}{guess}"
    )


def _compared(
    config: Mapping[str, Any],
    words: str,
    tensor: Mapping[str, Any],
    kind: TensorType,
    free: Sequence[bool] | None = None,
) -> Iterator[str]:
    """Yield a message for each difference between a tensor of the entry and of the model.

    ``free``: which sizes of an output are known to be variable; None for an input.
    """
    datatype, provided = tensor.get("data_type", ""), _datatype(kind)
    if kind.element is not None and datatype != provided:
        yield (f"configuration expects datatype {datatype} for {words}, model provides {provided}")
    shape, max_batch_size = kind.shape, int(config.get("max_batch_size", 0))
    if shape is None:
        return
    is_input = free is None
    if not shape and (is_input or not max_batch_size):
        # Triton's backends give the one value, however many rows a request says it has.
        fits = all(size == 1 for size in model_dims(tensor))
    elif max_batch_size and (not shape or shape[0] is not None):
        yield (
            f"max_batch_size is {max_batch_size}, but {words} has shape {_shape(kind)} in the "
            "model, whose first size is not dynamic"
        )
        return
    else:
        sizes = _whole(config, tensor)
        free = free or [False] * len(shape)
        fits = len(shape) == len(sizes) and all(
            _fits(size, configured, is_input=is_input, is_free=is_free)
            for size, configured, is_free in zip(shape, sizes, free, strict=True)
        )
    if not fits:
        batch = " (with the batch)" if max_batch_size else ""
        yield (
            f"configuration expects shape {_whole(config, tensor)}{batch} for {words}, model "
            f"provides {_shape(kind)}"
        )


def _fits(size: int | None, given: int, *, is_input: bool, is_free: bool) -> bool:
    if is_input:
        return size is None or given in (-1, size)
    return given in (-1, size) if size is None and is_free else size is None or given == size


def _whole(config: Mapping[str, Any], tensor: Mapping[str, Any]) -> list[int]:
    """Return all sizes of the model's tensor by the configuration, including the batch."""
    return [-1] * (int(config.get("max_batch_size", 0)) > 0) + model_dims(tensor)


def _datatype(kind: TensorType) -> str:
    return (
        "an unknown type" if kind.element is None else config_name(BY_ELEMENT_NAME[kind.element])
    )


def _shape(kind: TensorType) -> str:
    return "of unknown rank" if kind.shape is None else str(dims_of(kind.shape))
