"""The ``parameters`` of ``config.pbtxt`` and of requests.

Those of an entry are parsed once, and all their problems are reported together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from brisk.errors import InvalidConfigurationError, InvalidRequestError
from brisk.protocol.records import DEFAULT_MAX_RUN_NS
from brisk.scheduling.job_class import JobClass
from brisk.settings import accuracy_ppm, share_ppm, tolerance

JOB_CLASSES = tuple(job_class.value for job_class in JobClass)
REALTIME, NORMAL = JobClass.REALTIME.value, JobClass.NORMAL.value

DEFAULT_MAX_QUEUE_SIZE = 512

LONGEST_RUN_S = 30 * 24 * 3600

CLASS, MAX_CLASS = "brisk_class", "brisk_max_class"
ACCURACY = "brisk_accuracy"
TOLERANCE, SMALLER_MODEL = "brisk_tolerance", "brisk_smaller_model"

Parser = Callable[[str], Any]
"""Returns the value of a text; raises ValueError that says what the text must be."""


class Parameters(NamedTuple):
    """The parsed parameters of an entry, as far as Brisk uses them."""

    job_class: str
    """The class of requests that do not ask for one."""
    max_class: str
    """The most urgent class that requests may ask for."""
    max_queue_size: int
    max_run_ns: int
    """The longest time that a run may take."""
    is_lazy: bool
    """Whether the first request loads the model."""
    accuracy_ppm: int
    """See ``LoadModel``."""
    tolerance: str
    """See ``LoadModel``."""
    smaller_model: str
    """The file of a smaller model in the version's directory; empty: there is none."""
    leaves_open: bool
    """Whether it is the server alone that asks for early answers (``BRISK_ACCURACY``), so that the
    parameters do not say what the outputs are."""
    foreign: tuple[str, ...]
    """The names of parameters that are not Brisk's, listed once in the log."""
    ignored_onnxruntime: tuple[str, ...]
    """The parameters of the ONNX Runtime backend that have no meaning in Brisk."""

    def ignored(self) -> Iterator[str]:
        """Yield a log line for each kind of parameters that have no effect."""
        if names := self.ignored_onnxruntime:
            are = "has" if len(names) == 1 else "have"
            yield f"{_named(names)} of the ONNX Runtime backend {are} no meaning"
        if names := self.foreign:
            are = "is" if len(names) == 1 else "are"
            own = {_bare(name): name for name in ENTRY_PARAMETERS}
            meant = [own[_bare(name)] for name in names if _bare(name) in own]
            guess = f"; did you mean {', '.join(meant)}?" if meant else ""
            yield f"{_named(names)} {are} unknown to Brisk and ignored{guess}"
        early = ((TOLERANCE, self.tolerance), (SMALLER_MODEL, self.smaller_model))
        if names := tuple(name for name, said in early if said and not self.accuracy_ppm):
            have = "has" if len(names) == 1 else "have"
            yield f"{_named(names)} {have} no effect without {ACCURACY}"


def _named(names: Sequence[str]) -> str:
    return f"{'parameter' if len(names) == 1 else 'parameters'} {', '.join(names)}"


def _bare(name: str) -> str:
    """Return a parameter's name as misremembered names still have it: small letters, without
    ``brisk`` in front and what joins words."""
    return re.sub(r"[\W_]", "", name.lower()).removeprefix("brisk")


def choice(words: Mapping[str, Any], expected: str) -> Parser:
    """Return a parser from each of ``words`` to its value. ``expected``: for its message."""

    def parse(text: str) -> Any:
        if text not in words:
            raise ValueError(f"must be {expected}")
        return words[text]

    return parse


def _positive_integer(text: str) -> int:
    if not text.isdecimal() or int(text) < 1 or int(text) > 2**31 - 1:
        raise ValueError("must be a whole number from 1 to 2147483647")
    return int(text)


def _duration_ns(text: str) -> int:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= LONGEST_RUN_S:
        raise ValueError(f"must be a number of seconds from 0.001 to {LONGEST_RUN_S}")
    return round(seconds * 1e9)


def _file_name(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("must be a file in the version's directory")
    return text


def matching(form: re.Pattern[str], expected: str) -> Parser:
    """Return a parser of texts of a form. ``expected``: its description."""

    def parse(text: str) -> str:
        if not form.fullmatch(text):
            raise ValueError(f"must be {expected}")
        return text

    return parse


_job_class = choice({name: name for name in JOB_CLASSES}, f"one of {', '.join(JOB_CLASSES)}")

ENTRY_PARAMETERS: Mapping[str, Parser] = {
    CLASS: _job_class,
    MAX_CLASS: _job_class,
    ACCURACY: share_ppm,
    "brisk_load": choice({"eager": False, "lazy": True}, "eager or lazy"),
    "brisk_max_queue_size": _positive_integer,
    "brisk_max_run": _duration_ns,
    SMALLER_MODEL: _file_name,
    "brisk_share": choice({"on": True, "off": False}, "on or off"),
    TOLERANCE: lambda text: str(tolerance(text)),
}

INPUTS_ON_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"
"""A parameter of Triton's Python backend, which hands tensors over in a GPU's memory if it is
"no"."""

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
"""Parameters of Triton's ONNX Runtime backend; an entry may keep them. ``session_tuning`` reads
those that have an effect."""


def read_texts(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a configuration's ``parameters`` field by name, sorted by name."""
    return {
        name: str(entry.get("string_value", "") if isinstance(entry, Mapping) else entry).strip()
        for name, entry in sorted(parameters.items())
    }


def parse_texts(
    texts: Mapping[str, str],
    parsers: Mapping[str, Parser],
    problems: Collection[str] = (),
    where: str = "in the parameters",
) -> dict[str, Any]:
    """Return the parsed values, by name, of the texts that have a parser.

    Raises InvalidConfigurationError, which says ``where``, with every mistake and ``problems``.
    """
    values: dict[str, Any] = {}
    mistakes = list(problems)
    for name in texts.keys() & parsers.keys():
        try:
            values[name] = parsers[name](texts[name])
        except ValueError as error:
            mistakes.append(f"{name} {error}, not '{texts[name]:.60}'")
    if mistakes:
        raise InvalidConfigurationError(f"{where}: " + "; ".join(sorted(mistakes)))
    return values


def parse_parameters(parameters: Mapping[str, Any], taken: Collection[str] = ()) -> Parameters:
    """Parse the ``parameters`` field of a configuration. ``taken``: names that other code reads.

    Raises InvalidConfigurationError that names every wrong or unknown ``brisk_*`` parameter, and
    one of the Python backend's that is not supported.
    """
    texts = read_texts(parameters)
    others = [name for name in texts if name not in ENTRY_PARAMETERS and name not in taken]
    unknown = [_unknown(name) for name in others if name.lower().startswith("brisk_")]
    if texts.get(INPUTS_ON_CPU, "yes").lower() == "no":
        unknown.append(f"{INPUTS_ON_CPU} must be yes: tensors in a GPU's memory are not taken")
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
        values.get("brisk_max_run", DEFAULT_MAX_RUN_NS),
        values.get("brisk_load", False),
        values[ACCURACY] if ACCURACY in values else accuracy_ppm(),
        values.get(TOLERANCE, ""),
        values.get(SMALLER_MODEL, ""),
        leaves_open="brisk_accuracy" not in values
        and "brisk_tolerance" not in values
        and accuracy_ppm() > 0,
        foreign=tuple(
            name for name in others if name not in (*ONNXRUNTIME_PARAMETERS, INPUTS_ON_CPU)
        ),
        ignored_onnxruntime=tuple(name for name in others if name in ONNXRUNTIME_PARAMETERS),
    )


def needs_classes(said: Parameters, config: Mapping[str, Any]) -> bool:
    """Return ``LoadModel.needs_classes`` of an entry: a file with labels of an output says that
    these are classes."""
    outputs = config.get("output", ())
    return said.leaves_open and not any(each.get("label_filename") for each in outputs)


def _unknown(name: str) -> str:
    import difflib

    nearest = difflib.get_close_matches(name.lower(), ENTRY_PARAMETERS, n=1, cutoff=0.0)
    return f"unknown parameter '{name}', did you mean '{nearest[0]}'?"


def is_above(one: str, other: str) -> bool:
    """Whether class ``one`` is more urgent than ``other``."""
    return JOB_CLASSES.index(one) < JOB_CLASSES.index(other)


# The parts of a request other than its inputs.

MILLION = 1_000_000
_EARLY_EXIT = "brisk_early_exit"
_REQUEST_PARAMETERS = (CLASS, _EARLY_EXIT, ACCURACY)

MAX_CONTEXT_CHARACTERS = 200


def request_parameters(request: Any) -> Mapping[str, Any]:
    """Return the parameters that the client has set."""
    text = request.parameters()
    return json.loads(text) if text and text != "{}" else {}


def requested_outputs(request: Any, outputs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the outputs that a request wants, in the order of the entry's."""
    requested = request.requested_output_names()
    if len(requested) == len(outputs):  # Triton hands on each once, and none but the entry's
        return outputs
    return tuple(name for name in outputs if name in requested)


def trace_context(request: Any) -> str:
    """Return a request's trace context from Triton (OpenTelemetry's propagation headers as JSON).

    Empty if there is none, as always with a Triton before 24.08.
    """
    trace = getattr(request, "trace", None)
    context = trace().get_context() if trace is not None else None
    return str(context)[:MAX_CONTEXT_CHARACTERS] if context else ""


LONGEST_TIMEOUT_US = 30 * 24 * 3600 * MILLION
"""The longest timeout that sets a deadline; the end of a longer one, in ns, might be no integer of
the protocol."""


def request_deadline_ns(arrived_ns: int, timeout_us: int) -> int | None:
    """Return when a request is late; None if it sets no timeout or one of more than 30 days."""
    if not 0 < timeout_us <= LONGEST_TIMEOUT_US:
        return None
    return arrived_ns + timeout_us * 1000


def request_class(parameters: Mapping[str, Any], entry: Parameters) -> str:
    """Return a request's class: its parameter ``brisk_class``, else the entry's.

    Raises InvalidRequestError for an unknown ``brisk_*`` parameter or class, and for a class above
    the entry's ``brisk_max_class``: access to a model does not include precedence over others.
    """
    job_class = entry.job_class
    for name, value in parameters.items():
        if name == CLASS:
            if value not in JOB_CLASSES:
                raise InvalidRequestError(
                    f"request parameter {CLASS} must be one of {', '.join(JOB_CLASSES)}, "
                    f"not {value!r:.60}"
                )
            if is_above(value, entry.max_class):
                raise InvalidRequestError(
                    f"request parameter {CLASS} asks for class '{value}', but the entry allows "
                    f"'{entry.max_class}' at most; to allow it, set the parameter {MAX_CLASS} to "
                    f'"{value}" in config.pbtxt'
                )
            job_class = value
        elif name.lower().startswith("brisk_") and name not in _REQUEST_PARAMETERS:
            raise InvalidRequestError(
                f"unknown request parameter '{name:.60}'; "
                f"requests take {', '.join(_REQUEST_PARAMETERS)}"
            )
    return job_class


def request_agreement(parameters: Mapping[str, Any]) -> int | None:
    """Return how many of a million early answers must equal the model's own; None if the request
    does not say.

    It follows from ``brisk_early_exit`` (false: a million, so no early answers) and
    ``brisk_accuracy``, the least share. Raises InvalidRequestError for other values.
    """
    agreement_ppm: int | None = None
    if ACCURACY in parameters:
        agreement_ppm = _share_ppm(parameters[ACCURACY])
    if _EARLY_EXIT in parameters:
        text = str(parameters[_EARLY_EXIT]).lower()
        if text not in ("true", "false"):
            raise InvalidRequestError(
                f"request parameter {_EARLY_EXIT} must be true or false, "
                f"not {parameters[_EARLY_EXIT]!r:.60}"
            )
        if text == "false":
            return MILLION
    return agreement_ppm


def _share_ppm(value: Any) -> int:
    """Return a share, ``0.99`` or ``"0.99"``, in parts of a million."""
    try:
        share = float(value)
    except (TypeError, ValueError, OverflowError):
        share = 0.0
    if isinstance(value, bool) or not 0 < share <= 1:
        raise InvalidRequestError(
            f"request parameter {ACCURACY} must be a number above 0 and at most 1, "
            f"not {value!r:.60}"
        )
    return round(share * MILLION)
