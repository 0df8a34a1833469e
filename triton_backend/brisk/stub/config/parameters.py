"""The ``parameters`` of ``config.pbtxt``: parsed once, all problems reported together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from brisk.errors import InvalidConfigurationError, InvalidRequestError

REALTIME = "realtime"
JOB_CLASSES = (REALTIME, "normal", "besteffort")

DEFAULT_MAX_QUEUE_SIZE = 512


_CLASS, _MAX_CLASS = "brisk_class", "brisk_max_class"


class Parameters(NamedTuple):
    """What Brisk reads of an entry's parameters.

    ``job_class``: of requests that ask for none; ``max_class``: the most urgent they may ask for.
    ``foreign``: names of others, listed once in the log. ``ignored_onnxruntime``: those of the
    ONNX Runtime backend that mean nothing here. ``is_lazy``: loaded by its first request.
    """

    job_class: str
    max_class: str
    max_queue_size: int
    is_lazy: bool
    foreign: tuple[str, ...]
    ignored_onnxruntime: tuple[str, ...]


def _job_class(text: str) -> str:
    if text not in JOB_CLASSES:
        raise ValueError(f"must be one of {', '.join(JOB_CLASSES)}")
    return text


def _is_lazy(text: str) -> bool:
    if text not in ("eager", "lazy"):
        raise ValueError("must be eager or lazy")
    return text == "lazy"


def _positive_integer(text: str) -> int:
    if not text.isdecimal() or int(text) < 1 or int(text) > 2**31 - 1:
        raise ValueError("must be a whole number from 1 to 2147483647")
    return int(text)


_KNOWN: Mapping[str, tuple[Callable[[str], Any], Any]] = {
    _CLASS: (_job_class, "normal"),
    _MAX_CLASS: (_job_class, None),  # the entry's brisk_class
    "brisk_load": (_is_lazy, False),
    "brisk_max_queue_size": (_positive_integer, DEFAULT_MAX_QUEUE_SIZE),
}
"""Parser and default by name; ``docs`` and messages are made from this table alone."""

MILLION = 1_000_000
_EARLY_EXIT, _ACCURACY = "brisk_early_exit", "brisk_accuracy"
_REQUEST_PARAMETERS = (_CLASS, _EARLY_EXIT, _ACCURACY)

ONNXRUNTIME_PARAMETERS = frozenset(
    {
        "arena_extend_strategy",
        "cudnn_conv_algo_search",
        "cudnn_conv_use_max_workspace",
        "default_max_batch_size",
        "do_copy_in_default_stream",
        "disable_prepacking",
        "enable_mem_arena",
        "enable_mem_pattern",
        "execution_mode",
        "gpu_mem_limit",
        "inter_op_thread_count",
        "intra_op_thread_count",
        "memory.enable_memory_arena_shrinkage",
        "optimization.memory.enable_memory_arena_shrinkage",
        "optimization_level",
        "session.dynamic_block_base",
        "session.intra_op.allow_spinning",
        "session.use_device_allocator_for_initializers",
        "share_allocator",
        "share_session_between_instances",
        "use_global_thread_pool",
    }
)
"""Parameters of Triton's ONNX Runtime backend; an entry may keep them. Those that
``session_tuning`` takes mean something on a CPU."""


def parse_parameters(parameters: Mapping[str, Any], taken: Collection[str] = ()) -> Parameters:
    """Parse the ``parameters`` field of a model configuration; ``taken``: names read by others.

    Raises InvalidConfigurationError naming every wrong or unknown ``brisk_*`` key.
    """
    problems: list[str] = []
    values: dict[str, Any] = {name: default for name, (_, default) in _KNOWN.items()}
    foreign, onnxruntime = [], []
    for name, entry in parameters.items():
        text = str(entry.get("string_value", "") if isinstance(entry, Mapping) else entry).strip()
        if name in _KNOWN:
            try:
                values[name] = _KNOWN[name][0](text)
            except ValueError as error:
                problems.append(f"{name} {error}, not '{text}'")
        elif name.lower().startswith("brisk_"):
            problems.append(_unknown(name))
        elif name in taken:
            continue
        elif name in ONNXRUNTIME_PARAMETERS:
            onnxruntime.append(name)
        else:
            foreign.append(name)
    job_class, max_class = values[_CLASS], values[_MAX_CLASS] or values[_CLASS]
    if not problems and _is_above(job_class, max_class):
        problems.append(
            f"{_MAX_CLASS} '{max_class}' is below {_CLASS} '{job_class}', which the entry's own "
            f"requests have; it must be one of {', '.join(_up_from(job_class))}"
        )
    if problems:
        raise InvalidConfigurationError("in the parameters: " + "; ".join(sorted(problems)))
    return Parameters(
        job_class,
        max_class,
        values["brisk_max_queue_size"],
        values["brisk_load"],
        tuple(sorted(foreign)),
        tuple(sorted(onnxruntime)),
    )


def _unknown(name: str) -> str:
    import difflib

    nearest = difflib.get_close_matches(name.lower(), _KNOWN, n=1, cutoff=0.0)
    return f"unknown parameter '{name}', did you mean '{nearest[0]}'?"


LONGEST_TIMEOUT_US = 30 * 24 * 3600 * MILLION
"""A longer one is no deadline at all, and its end in ns might be no integer of the protocol."""


def request_deadline_ns(arrived_ns: int, timeout_us: int) -> int | None:
    """When a request is late; None where it sets no time-out or one of more than 30 days."""
    if not 0 < timeout_us <= LONGEST_TIMEOUT_US:
        return None
    return arrived_ns + timeout_us * 1000


def _is_above(one: str, other: str) -> bool:
    """Whether class ``one`` is more urgent than ``other``."""
    return JOB_CLASSES.index(one) < JOB_CLASSES.index(other)


def _up_from(job_class: str) -> tuple[str, ...]:
    """The classes that are not less urgent."""
    return JOB_CLASSES[: JOB_CLASSES.index(job_class) + 1]


def request_class(parameters: Mapping[str, Any], entry: Parameters) -> str:
    """A request's class: its parameter ``brisk_class``, else the entry's.

    Raises InvalidRequestError for an unknown ``brisk_*`` parameter or class, and for a class above
    the entry's ``brisk_max_class``: who may ask a model may not therefore go before all others.
    """
    job_class = entry.job_class
    for name, value in parameters.items():
        if name == _CLASS:
            if value not in JOB_CLASSES:
                raise InvalidRequestError(
                    f"request parameter {_CLASS} must be one of {', '.join(JOB_CLASSES)}, "
                    f"not {value!r:.60}"
                )
            if _is_above(value, entry.max_class):
                raise InvalidRequestError(
                    f"request parameter {_CLASS} asks for class '{value}', but the entry allows "
                    f"'{entry.max_class}' at most; its parameter {_MAX_CLASS} may allow more"
                )
            job_class = value
        elif name.startswith("brisk_") and name not in _REQUEST_PARAMETERS:
            raise InvalidRequestError(
                f"unknown request parameter '{name:.60}'; "
                f"requests take {', '.join(_REQUEST_PARAMETERS)}"
            )
    return job_class


def request_agreement(parameters: Mapping[str, Any]) -> int | None:
    """How many of a million early answers must be the model's own; None where nothing is asked.

    From ``brisk_early_exit`` (false: a million, no early answers) and ``brisk_accuracy``, the
    least share. Raises InvalidRequestError for other values.
    """
    wanted: int | None = None
    if _ACCURACY in parameters:
        wanted = _share_ppm(parameters[_ACCURACY])
    if _EARLY_EXIT in parameters:
        text = str(parameters[_EARLY_EXIT]).lower()
        if text not in ("true", "false"):
            raise InvalidRequestError(
                f"request parameter {_EARLY_EXIT} must be true or false, "
                f"not {parameters[_EARLY_EXIT]!r:.60}"
            )
        if text == "false":
            return MILLION
    return wanted


def _share_ppm(value: Any) -> int:
    """``0.99`` or ``"0.99"`` in parts of a million."""
    try:
        share = float(value)
    except (TypeError, ValueError, OverflowError):
        share = 0.0
    if isinstance(value, bool) or not 0 < share <= 1:
        raise InvalidRequestError(
            f"request parameter {_ACCURACY} must be a number above 0 and at most 1, "
            f"not {value!r:.60}"
        )
    return round(share * MILLION)
