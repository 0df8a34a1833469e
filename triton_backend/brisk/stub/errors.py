"""Brisk's errors as Triton's: the one place where they are mapped."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from brisk.errors import BriskError

_CODES = {
    "invalid_model": "INVALID_ARG",
    "unsupported_operator": "UNSUPPORTED",
    "invalid_configuration": "INVALID_ARG",
    "invalid_request": "INVALID_ARG",
    "not_loaded": "NOT_FOUND",
    "unavailable": "UNAVAILABLE",
    "cancelled": "CANCELLED",
    "protocol": "INTERNAL",
    "internal": "INTERNAL",
}
"""Triton error code by the code of each class in ``brisk.errors``."""


def triton_error(error: Exception) -> Any:
    """A ``pb_utils.TritonError`` of the fitting code; INTERNAL for anything unforeseen."""
    if isinstance(error, BriskError):
        code = getattr(pb_utils.TritonError, _CODES[error.code])
        return pb_utils.TritonError(str(error), code)
    return pb_utils.TritonError(f"{type(error).__name__}: {error}", pb_utils.TritonError.INTERNAL)
