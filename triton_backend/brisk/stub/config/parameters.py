"""The ``parameters`` of ``config.pbtxt``: parsed once, all problems reported together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from brisk.errors import InvalidConfigurationError

REALTIME = "realtime"
JOB_CLASSES = (REALTIME, "normal", "besteffort")

DEFAULT_MAX_QUEUE_SIZE = 512

CLASS, MAX_CLASS = "brisk_class", "brisk_max_class"

Parser = Callable[[str], Any]
"""Raises ValueError that says what the text must be."""


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


def choice(words: Mapping[str, Any], expected: str) -> Parser:
    """A parser of one of ``words``, to its value."""

    def parse(text: str) -> Any:
        if text not in words:
            raise ValueError(f"must be {expected}")
        return words[text]

    return parse


def _positive_integer(text: str) -> int:
    if not text.isdecimal() or int(text) < 1 or int(text) > 2**31 - 1:
        raise ValueError("must be a whole number from 1 to 2147483647")
    return int(text)


_job_class = choice({name: name for name in JOB_CLASSES}, f"one of {', '.join(JOB_CLASSES)}")

ENTRY_PARAMETERS: Mapping[str, Parser] = {
    CLASS: _job_class,
    MAX_CLASS: _job_class,
    "brisk_load": choice({"eager": False, "lazy": True}, "eager or lazy"),
    "brisk_max_queue_size": _positive_integer,
}

ONNXRUNTIME_PARAMETERS = frozenset(
    (
        *("arena_extend_strategy", "cudnn_conv_algo_search", "cudnn_conv_use_max_workspace"),
        *("default_max_batch_size", "do_copy_in_default_stream", "disable_prepacking"),
        *("enable_mem_arena", "enable_mem_pattern", "execution_mode", "gpu_mem_limit"),
        *("inter_op_thread_count", "intra_op_thread_count"),
        *("memory.enable_memory_arena_shrinkage",),
        *("optimization.memory.enable_memory_arena_shrinkage", "optimization_level"),
        *("session.dynamic_block_base", "session.intra_op.allow_spinning"),
        *("session.use_device_allocator_for_initializers", "share_allocator"),
        *("share_session_between_instances", "use_global_thread_pool"),
    )
)
"""Parameters of Triton's ONNX Runtime backend; an entry may keep them. Those that
``session_tuning`` takes mean something on a CPU."""


def read_texts(parameters: Mapping[str, Any]) -> dict[str, str]:
    """The ``parameters`` field of a model configuration, by name, in order of the names."""
    return {
        name: str(entry.get("string_value", "") if isinstance(entry, Mapping) else entry).strip()
        for name, entry in sorted(parameters.items())
    }


def parse_texts(
    texts: Mapping[str, str], parsers: Mapping[str, Parser], problems: Collection[str] = ()
) -> dict[str, Any]:
    """Values by name of those that have a parser.

    Raises InvalidConfigurationError with what is wrong with these, and with ``problems``.
    """
    values: dict[str, Any] = {}
    found = list(problems)
    for name in texts.keys() & parsers.keys():
        try:
            values[name] = parsers[name](texts[name])
        except ValueError as error:
            found.append(f"{name} {error}, not '{texts[name]:.60}'")
    if found:
        raise InvalidConfigurationError("in the parameters: " + "; ".join(sorted(found)))
    return values


def parse_parameters(parameters: Mapping[str, Any], taken: Collection[str] = ()) -> Parameters:
    """Parse the ``parameters`` field of a model configuration; ``taken``: names read by others.

    Raises InvalidConfigurationError naming every wrong or unknown ``brisk_*`` key.
    """
    texts = read_texts(parameters)
    others = [name for name in texts if name not in ENTRY_PARAMETERS and name not in taken]
    unknown = [_unknown(name) for name in others if name.lower().startswith("brisk_")]
    values = parse_texts(texts, ENTRY_PARAMETERS, unknown)
    job_class = values.get(CLASS, "normal")
    max_class = values.get(MAX_CLASS, job_class)
    if is_above(job_class, max_class):
        allowed = JOB_CLASSES[: JOB_CLASSES.index(job_class) + 1]
        raise InvalidConfigurationError(
            f"in the parameters: {MAX_CLASS} '{max_class}' is below {CLASS} '{job_class}', "
            f"which the entry's own requests have; it must be one of {', '.join(allowed)}"
        )
    return Parameters(
        job_class,
        max_class,
        values.get("brisk_max_queue_size", DEFAULT_MAX_QUEUE_SIZE),
        values.get("brisk_load", False),
        foreign=tuple(name for name in others if name not in ONNXRUNTIME_PARAMETERS),
        ignored_onnxruntime=tuple(name for name in others if name in ONNXRUNTIME_PARAMETERS),
    )


def _unknown(name: str) -> str:
    import difflib

    nearest = difflib.get_close_matches(name.lower(), ENTRY_PARAMETERS, n=1, cutoff=0.0)
    return f"unknown parameter '{name}', did you mean '{nearest[0]}'?"


def is_above(one: str, other: str) -> bool:
    """Whether class ``one`` is more urgent than ``other``."""
    return JOB_CLASSES.index(one) < JOB_CLASSES.index(other)
