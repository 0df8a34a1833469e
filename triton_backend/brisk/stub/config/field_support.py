"""The fields of an entry's configuration that Brisk does not support: each is refused, or noticed
once when the entry loads.

A field is refused if ignoring it would change answers. A field that only affects cost or order
gets a notice with its name and the consequence. docs/migration.md has a row for every field of
``config.pbtxt``, including those that Triton's core handles before Brisk sees them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from brisk.errors import InvalidConfigurationError

_QUEUE = "holds in Triton's queue only"
_CLASS = (
    "Brisk takes requests over as they come, and computes them in the order of the request "
    "parameter brisk_class"
)
_BOUND = (
    "Brisk takes requests over as they come; brisk_max_queue_size bounds its own queue, and a "
    "request's own timeout is its deadline there"
)
_PINNED = "Brisk's memory is its own; no tensor passes through Triton's pinned buffers"


class Notice(NamedTuple):
    """A notice that a field of an entry does not have its usual effect."""

    level: str
    """The log level."""
    field: str
    """The field's dotted path in ``config.pbtxt``."""
    consequence: str
    effect: str = "has no effect"

    def __str__(self) -> str:
        return f"{self.field} {self.effect}: {self.consequence}"


COUNT = Notice(
    "info",
    "instance_group.count",
    "all instances share one session; more of them compute nothing sooner",
)

ACCELERATORS = Notice(
    "warning",
    "optimization.execution_accelerators",
    "ONNX Runtime's own kernels, on a GPU its CUDA provider's, compute the model",
)

IGNORED = (
    Notice(
        "warning",
        "instance_group.rate_limiter",
        "Triton's limiter takes a request for done as soon as Brisk has it, so it limits nothing; "
        "brisk_class says what is computed first",
    ),
    Notice(
        "warning",
        "instance_group.host_policy",
        "it binds Triton's threads, and the runtime computes in a process of its own; "
        "BRISK_THREADS and the server's processors bind that",
    ),
    Notice(
        "warning",
        "instance_group.secondary_devices",
        "the runtime of the instance's own device computes everything",
    ),
    COUNT,
    Notice("warning", "dynamic_batching.priority_levels", _CLASS, _QUEUE),
    Notice("warning", "dynamic_batching.default_priority_level", _CLASS, _QUEUE),
    Notice("warning", "dynamic_batching.default_queue_policy", _BOUND, _QUEUE),
    Notice("warning", "dynamic_batching.priority_queue_policy", _BOUND, _QUEUE),
    Notice(
        "info",
        "dynamic_batching.preferred_batch_size",
        "Brisk's worker joins the requests that wait when it is free, up to max_batch_size",
    ),
    ACCELERATORS,
    Notice("warning", "optimization.priority", "brisk_class says what is computed first"),
    Notice("info", "optimization.cuda", "the runtime decides itself how it drives its device"),
    Notice("info", "optimization.input_pinned_memory", _PINNED),
    Notice("info", "optimization.output_pinned_memory", _PINNED),
    Notice("info", "optimization.gather_kernel_buffer_threshold", _PINNED),
    Notice("info", "optimization.eager_batching", "Brisk's worker joins requests, not Triton"),
    Notice(
        "warning",
        "cc_model_filenames",
        "it names files by a GPU's compute capability, and this instance computes on the CPU",
    ),
)
"""The notices of the fields that Triton passes on and Brisk does not use."""

DELAY = Notice(
    "warning",
    "dynamic_batching.max_queue_delay_microseconds",
    "Triton keeps every request back for so long to join it with others, and Brisk's worker joins "
    "those that wait without; leave it out",
    "only delays",
)

CACHED = Notice(
    "info",
    "response_cache.enable",
    "Triton's cache goes by inputs alone, and would hand an early answer to requests that allow "
    "none; the whole model answers",
    "excludes early answers",
)

WARM_UP = Notice(
    "warning",
    "model_warmup",
    "with sequence_batching its requests belong to no sequence, like Triton's fillers of a batch, "
    "and are not computed",
)
"""The notice of an entry with ``sequence_batching``; elsewhere the field has its usual effect."""

REFUSED = {
    "batch_input": "the model would not get that input",
    "batch_output": "the answers would not be divided among the requests as it says",
    "input.allow_ragged_batch": "the model would get each request by itself, with its batch "
    "dimension, instead of all in one row",
    "model_transaction_policy.decoupled": "an ONNX model has one answer to a request, and clients "
    "of a decoupled model wait for any number",
}
"""The fields that are refused, with the consequence of ignoring each."""

_REFUSED_ON_GPU = {"cc_model_filenames": "the default model file would be served on every GPU"}

_USUAL: Mapping[str, Any] = {
    "instance_group.count": 1,
    "optimization.priority": "PRIORITY_DEFAULT",
    "optimization.input_pinned_memory": {"enable": True},
    "optimization.output_pinned_memory": {"enable": True},
}
"""The values that Triton writes for fields that a configuration does not set, unless these are 0
or empty."""


def check_fields(config: Mapping[str, Any], device: str) -> tuple[Notice, ...]:
    """Return a notice for each set field without its usual effect, in the order of the table.

    ``config``: the whole configuration as Triton hands it over, with its defaults. ``device``:
    ``cpu`` or ``cuda:N``. Raises InvalidConfigurationError with every field that is refused.
    """
    refused = REFUSED if device == "cpu" else {**REFUSED, **_REFUSED_ON_GPU}
    problems = [
        f"{field} is not supported: {consequence}"
        for field, consequence in refused.items()
        if _is_asked_for(config, field)
    ]
    if problems:
        raise InvalidConfigurationError(
            "; ".join(problems) + "; expected a configuration without (docs/migration.md)"
        )
    has_effect = {ACCELERATORS} if device != "cpu" and _accelerators(config) == {"cuda"} else set()
    if "sequence_batching" not in config:
        has_effect.add(WARM_UP)
    return tuple(
        notice
        for notice in (*IGNORED, DELAY, CACHED, WARM_UP)
        if notice not in has_effect and _is_asked_for(config, notice.field)
    )


def keeps_answers(config: Mapping[str, Any]) -> bool:
    """Whether Triton's response cache keeps an entry's answers, which requests of any parameters
    then get."""
    return _is_asked_for(config, CACHED.field)


def _accelerators(config: Mapping[str, Any]) -> set[str]:
    """Return the names of all execution accelerators that an entry asks for."""
    kinds = (config.get("optimization") or {}).get("execution_accelerators") or {}
    return {str(each.get("name", "")) for names in kinds.values() for each in names or ()}


def is_first_instance(config: Mapping[str, Any], instance: str) -> bool:
    """Whether an instance is the entry's first, which logs what concerns all of them.

    ``instance``: Triton's name for it: its group's name, its number, and on a GPU the device's.
    """
    groups = config.get("instance_group", ())
    if not groups or not instance:
        return True
    group = groups[0]
    first = f"{group.get('name', '')}_0"
    gpus = group.get("gpus") or ()
    return instance in (first, f"{first}_gpu{gpus[0]}" if gpus else first)


def _is_asked_for(config: Mapping[str, Any], field: str) -> bool:
    usual = _USUAL.get(field)
    if field == "dynamic_batching.preferred_batch_size":
        usual = [int(config.get("max_batch_size", 0))]  # Triton's choice where nothing is said
    return any(value not in (usual, None) and bool(value) for value in _values(config, field)) or (
        isinstance(usual, Mapping) and any(value != usual for value in _values(config, field))
    )


def _values(config: Any, field: str) -> Iterator[Any]:
    """Yield the values of a field, given by its dotted path, in every element of repeated
    messages."""
    if not field:
        yield config
        return
    name, _, rest = field.partition(".")
    for message in config if isinstance(config, list) else (config,):
        if isinstance(message, Mapping) and name in message:
            yield from _values(message[name], rest)
