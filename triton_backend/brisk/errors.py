"""The errors that Brisk raises on purpose, classed by what the caller can do about them.

The class decides Triton's error code, at one place (``brisk.stub.response``). A message says what
failed, which one, and what was expected.
"""

from __future__ import annotations

import re


class BriskError(Exception):
    """The base of all errors raised on purpose; ``code`` is the name sent over sockets."""

    code = "internal"

    def __init_subclass__(cls) -> None:
        if "code" in cls.__dict__:
            _BY_CODE[cls.code] = cls


_BY_CODE: dict[str, type[BriskError]] = {}


class InvalidModelError(BriskError):
    """The model file or its entry cannot be served as it is; fix the model."""

    code = "invalid_model"


class InvalidConfigurationError(BriskError):
    """``config.pbtxt`` asks for something impossible or unknown; fix the entry."""

    code = "invalid_configuration"


class InvalidRequestError(BriskError):
    """The request does not fit the model (name, shape, dtype, value); fix the request."""

    code = "invalid_request"


class ModelNotLoadedError(BriskError):
    """The request names a model version that the runtime does not hold."""

    code = "not_loaded"


class UnavailableError(BriskError):
    """A queue is full, a time-out is over, or the runtime restarts; try again later."""

    code = "unavailable"


class ShortageError(UnavailableError):
    """Memory or open files are short for the moment; try again later."""


class CancelledError(BriskError):
    """The client cancelled the request."""

    code = "cancelled"


class ProtocolError(BriskError):
    """The other end of a socket sent something that is not a valid record."""

    code = "protocol"


class ArtefactError(BriskError):
    """A stored artefact cannot be used: it is damaged, stale or foreign. It is ignored and made
    anew."""

    code = "artefact"


class InternalError(BriskError):
    """Brisk is at fault."""

    code = "internal"


def named_error(code: str, message: str) -> BriskError:
    """Return the error that was received; an InternalError if its code is unknown."""
    return _BY_CODE.get(code, InternalError)(message)


_NO_MEMORY = re.compile(
    r"can't allocate memory|bad_alloc|out of memory|cannot allocate memory|Unable to allocate"
    r"|Failed to allocate memory",
    re.IGNORECASE,
)
"""The messages of torch, C++, CUDA, the system, numpy and ONNX Runtime."""

_NO_FILE = re.compile("too many open files", re.IGNORECASE)


def lacks_memory(error: BaseException) -> bool:
    """Whether ``error``, or what caused it, reports that memory is short."""
    is_short = isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None
    return is_short or (error.__cause__ is not None and lacks_memory(error.__cause__))


def is_shortage(error: BaseException) -> bool:
    """Whether ``error``, or what caused it, reports that memory or open files are short."""
    if lacks_memory(error) or _NO_FILE.search(str(error)):
        return True
    return error.__cause__ is not None and is_shortage(error.__cause__)


def may_pass(error: BaseException) -> bool:
    """Whether ``error``, or what caused it, says nothing of a file's content: memory or open files
    are short, or a file that is there cannot be read."""
    is_absence = isinstance(error, FileNotFoundError | NotADirectoryError)
    if is_shortage(error) or (isinstance(error, OSError) and not is_absence):
        return True
    return error.__cause__ is not None and may_pass(error.__cause__)


def as_utf8(text: str) -> str:
    """Return a text that may name a path of any bytes as one that is UTF-8, which Triton needs."""
    return text.encode(errors="backslashreplace").decode()


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count for messages: ``1 segment``, ``2 segments``. ``plural``: of nouns that take
    more than an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
